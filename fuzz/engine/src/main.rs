//! libFuzzer around one target, whose name is in `$FUZZ_TARGET`.

#![no_main]

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<fuzz::Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        fuzz::target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET='{name}' is none of the targets"))
    });
    (target.run)(data);
});
