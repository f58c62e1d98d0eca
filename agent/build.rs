//! Enables identical code folding if the linker supports it: many instances of generic functions have the same machine
//! code.

use std::path::Path;
use std::process::{Command, Stdio};

/// The flag of LLD, mold and gold; GNU ld does not support it.
const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTFLAGS");
    let is_optimized = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_optimized && links_with_folding() == Some(true) {
        println!("cargo::rustc-link-arg-bins={FOLD}");
    }
}

/// Links an empty program with the flag, by the compiler, target and linker of this build.
fn links_with_folding() -> Option<bool> {
    let variable = |name| std::env::var_os(name);
    let folder = variable("OUT_DIR")?;
    let folder = Path::new(&folder);
    let source = folder.join("empty.rs");
    std::fs::write(&source, "fn main() {}\n").ok()?;
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.arg(&source).arg("--target").arg(variable("TARGET")?).args(["-C", &format!("link-arg={FOLD}")]);
    if let Some(linker) = variable("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.arg("-o").arg(folder.join("empty")).stdout(Stdio::null()).stderr(Stdio::null());
    Some(rustc.status().ok()?.success())
}
