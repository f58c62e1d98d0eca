//! Replays every input of the corpus, without the engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fuzz::{PLACES, TARGETS, has_reached, seeds_of_packets, seeds_of_xdp, target};

/// The time limit of an input, with a margin for a busy machine: none needs a hundredth of it.
const LIMIT: Duration = Duration::from_secs(10);

fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Returns this process's peak memory so far, in kB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn every_input_of_the_corpus_passes() {
    for target in TARGETS {
        let files = corpus(target.name);
        assert!(files.len() >= 5, "{} has {} inputs", target.name, files.len());
        for file in &files {
            let (data, begin) = (fs::read(file).unwrap(), Instant::now());
            if std::panic::catch_unwind(|| (target.run)(&data)).is_err() {
                panic!("{} does not pass: see above", file.display());
            }
            assert!(begin.elapsed() < LIMIT, "{}: {:?}", file.display(), begin.elapsed());
        }
    }
    assert!(peak() < 512 << 10, "{} kB", peak());
}

#[test]
fn the_corpus_stays_small() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    known.sort();
    assert_eq!(names, known, "a folder for each target");
    let bytes: u64 =
        TARGETS.iter().flat_map(|target| corpus(target.name)).map(|f| f.metadata().unwrap().len()).sum();
    assert!(bytes < 300_000, "{bytes} bytes");
}

/// `UPDATE=1` writes them.
#[test]
fn the_corpus_has_the_seeds_of_packets() {
    for (target, seeds) in [("packets", seeds_of_packets()), ("xdp", seeds_of_xdp())] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        for (number, seed) in seeds.into_iter().enumerate() {
            let file = folder.join(format!("seed-{number}"));
            if std::env::var_os("UPDATE").is_some() {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&file, &seed).unwrap();
            }
            assert!(fs::read(&file).unwrap() == seed, "{}; UPDATE=1 writes it", file.display());
        }
    }
}

/// Without root the targets of packets pass whatever their input.
#[test]
fn packets_reach_places_in_the_programs() {
    test_kit::require_root!();
    // XDP leaves most packets to the device's program, which counts them at the same places.
    for (name, seeds, least) in [("packets", seeds_of_packets(), 11), ("xdp", seeds_of_xdp(), 6)] {
        seeds.iter().for_each(|seed| (target(name).unwrap().run)(seed));
        let reached = (0..PLACES).filter(|place| has_reached(*place)).count();
        assert!(reached >= least, "{name}: {reached} places");
    }
}
