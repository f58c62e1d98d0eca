//! Chooses the objects: those of `APIARY_EBPF_OBJECT_DIR`, else the prebuilt ones, which must come from the sources
//! beside them; without their source lines, unless `APIARY_EBPF_LINES` is set.

mod line_info;

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Folder with objects to use instead of the prebuilt ones (tests of rebuilt objects, packagers).
const OBJECT_DIR: &str = "APIARY_EBPF_OBJECT_DIR";
/// Keeps the source lines, which a verifier log shows then. An agent with them needs 25 MB more while it loads.
const LINES: &str = "APIARY_EBPF_LINES";
/// The object of the programs for tc.
const DATAPATH: &str = "datapath.o";
/// The sources of an object, from the root of the repository. tools/build-ebpf hashes the same.
const SOURCES: [&str; 6] = [
    "ebpf/abi/Cargo.toml",
    "ebpf/abi/src",
    "ebpf/programs/Cargo.toml",
    "ebpf/programs/Cargo.lock",
    "ebpf/programs/src",
    "tools/build-ebpf",
];

fn main() {
    if let Err(message) = choose() {
        for line in message.lines() {
            println!("cargo::error={line}");
        }
    }
}

fn choose() -> Result<(), String> {
    for variable in [OBJECT_DIR, LINES] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let crate_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let own = env::var_os(OBJECT_DIR);
    let keeps_lines = env::var_os(LINES).is_some();
    let objects = match own {
        Some(dir) => PathBuf::from(dir),
        None => {
            let prebuilt = crate_dir.join("prebuilt");
            check_prebuilt(&prebuilt, &crate_dir.join("../.."))?;
            prebuilt
        }
    };
    for (name, variable) in
        [(DATAPATH, "DATAPATH_OBJECT"), ("sock.o", "SOCK_OBJECT"), ("xdp.o", "XDP_OBJECT")]
    {
        let object = objects.join(name);
        let object = object.canonicalize().map_err(|error| {
            format!(
                "no object {}: {error}; tools/build-ebpf DIR with {OBJECT_DIR}=DIR makes one",
                object.display()
            )
        })?;
        println!("cargo::rerun-if-changed={}", object.display());
        let object = if keeps_lines { object } else { without_lines(&object, name)? };
        println!("cargo::rustc-env={variable}={}", object.display());
        if name == DATAPATH {
            let bytes = fs::read(&object).map_err(|error| format!("{}: {error}", object.display()))?;
            println!("cargo::rustc-env=DATAPATH_DIGEST={}", hex(&Sha256::digest(bytes)));
        }
    }
    Ok(())
}

/// Writes an object without its source lines; returns the path.
fn without_lines(object: &Path, name: &str) -> Result<PathBuf, String> {
    let describe = |error: io::Error| format!("{}: {error}", object.display());
    let bytes = fs::read(object).map_err(describe)?;
    let stripped = line_info::remove(&bytes)
        .ok_or_else(|| format!("{}: no source lines at the end of .BTF.ext", object.display()))?;
    let folder = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    let path = Path::new(&folder).join(name);
    fs::write(&path, stripped).map_err(describe)?;
    Ok(path)
}

/// Refuses prebuilt objects of other sources than those in the repository; outside of it there is nothing to compare.
fn check_prebuilt(prebuilt: &Path, repository: &Path) -> Result<(), String> {
    if !SOURCES.iter().all(|source| repository.join(source).exists()) {
        return Ok(());
    }
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", repository.join(source).display());
    }
    let hash_file = prebuilt.join("sources.sha256");
    println!("cargo::rerun-if-changed={}", hash_file.display());
    let found =
        fs::read_to_string(&hash_file).map_err(|error| format!("{}: {error}", hash_file.display()))?;
    let expected = sources_hash(repository).map_err(|error| format!("hashing the eBPF sources: {error}"))?;
    if found.trim() == expected {
        return Ok(());
    }
    Err(format!(
        "the prebuilt eBPF objects are not those of the sources\n\
         \x20 sources (ebpf/abi, ebpf/programs, tools/build-ebpf): {expected}\n\
         \x20 objects (ebpf/object/prebuilt/sources.sha256):       {}\n\
         rebuild them: tools/build-ebpf --update-prebuilt\n\
         or build others and use them: tools/build-ebpf DIR && export {OBJECT_DIR}=DIR",
        found.trim()
    ))
}

/// The sha256 of the list that `sha256sum` prints for all source files in the order of their names.
fn sources_hash(repository: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(repository, source.to_owned(), &mut files)?;
    }
    files.sort();
    let mut list = String::new();
    for file in files {
        let digest = hex(&Sha256::digest(fs::read(repository.join(&file))?));
        let _ = writeln!(list, "{digest}  {file}");
    }
    Ok(hex(&Sha256::digest(list)))
}

fn collect(repository: &Path, name: String, files: &mut Vec<String>) -> io::Result<()> {
    let path = repository.join(&name);
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?.file_name();
            collect(repository, format!("{name}/{}", entry.to_string_lossy()), files)?;
        }
    } else {
        files.push(name);
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
