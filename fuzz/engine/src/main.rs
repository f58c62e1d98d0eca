//! libFuzzer around one target, whose name is in `$FUZZ_TARGET`.

#![no_main]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Counters that libFuzzer takes as coverage, beside those of edges: places in programs of the kernel.
// SAFETY: libFuzzer reads and clears the bytes of this section between the runs of inputs, in this thread.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
#[used]
static PLACES: [AtomicU8; fuzz::PLACES] = [const { AtomicU8::new(0) }; fuzz::PLACES];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<fuzz::Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        fuzz::target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET='{name}' is none of the targets"))
    });
    (target.run)(data);
    for (place, counter) in PLACES.iter().enumerate() {
        if fuzz::has_reached(place) {
            counter.store(1, Ordering::Relaxed);
        }
    }
});
