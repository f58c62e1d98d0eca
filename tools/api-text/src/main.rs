//! Prints the public API of a crate, one item a line, from the file that `rustdoc --output-format json` has written.
//! `tools/public-api` runs it.

use std::error::Error;
use std::io::Write;

/// Auto traits that a line each would promise, although no signature of these crates asks for them.
const OMITTED_TRAITS: [&str; 4] = [
    "core::marker::Freeze",
    "core::marker::UnsafeUnpin",
    "core::panic::unwind_safe::RefUnwindSafe",
    "core::panic::unwind_safe::UnwindSafe",
];

fn main() -> Result<(), Box<dyn Error>> {
    let [path] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err("usage: api-text FILE.json".into());
    };
    let api = public_api::Builder::from_rustdoc_json(path).omit_blanket_impls(true).build()?;
    let mut out = std::io::stdout().lock();
    for item in api.items() {
        let line = item.to_string();
        if !is_omitted(&line) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// Whether the line implements or refuses one of the omitted traits: `impl<..> !PATH for TYPE`.
fn is_omitted(line: &str) -> bool {
    line.starts_with("impl")
        && OMITTED_TRAITS.iter().any(|name| {
            line.split_once(name)
                .is_some_and(|(before, after)| before.ends_with([' ', '!']) && after.starts_with(" for "))
        })
}
