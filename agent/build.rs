//! Enables what makes the binary smaller if the linker and the C library support it: identical code folding, as many
//! instances of generic functions have the same machine code, and packed relocations, of which each start reads all.

use std::path::Path;
use std::process::{Command, Stdio};

/// A flag of LLD, mold and gold; GNU ld does not support it.
const FOLD: &str = "-Wl,--icf=all";
/// Relocations as a bitmap (`DT_RELR`) instead of 24 bytes each. glibc supports them from 2.36 on; an older one refuses
/// to start such a program.
const PACK: &str = "-Wl,-z,pack-relative-relocs";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTFLAGS");
    let is_optimized = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    for flag in [FOLD, PACK] {
        if is_optimized && runs_with(flag) == Some(true) {
            println!("cargo::rustc-link-arg-bins={flag}");
        }
    }
}

/// Links an empty program with the flag, by the compiler, target and linker of this build, and runs it, unless it is
/// for another machine. Returns whether both succeed.
fn runs_with(flag: &str) -> Option<bool> {
    let variable = |name| std::env::var_os(name);
    let folder = variable("OUT_DIR")?;
    let folder = Path::new(&folder);
    let source = folder.join("empty.rs");
    std::fs::write(&source, "fn main() {}\n").ok()?;
    let program = folder.join("empty");
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.arg(&source).arg("--target").arg(variable("TARGET")?).args(["-C", &format!("link-arg={flag}")]);
    if let Some(linker) = variable("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.arg("-o").arg(&program).stdout(Stdio::null()).stderr(Stdio::null());
    let is_linked = rustc.status().ok()?.success();
    if variable("HOST") != variable("TARGET") {
        return Some(is_linked && flag == FOLD);
    }
    Some(is_linked && Command::new(program).status().ok()?.success())
}
