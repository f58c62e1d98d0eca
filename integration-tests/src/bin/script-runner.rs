//! `script-runner [--family NAME] [-v] FILE...`: runs scripts against the cells of their family.
//!
//! One line a file, `ok` or `FAIL`, its name and how long it took, what it said below a failure, with `-v` below all. Exits with 0 if all pass, 1 if
//! any fails, 77 if the family of one is not known, 2 if the command line is wrong.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use integration_tests::scripts::{FAMILIES, Family, family_of, family_of_path, run};

const UNKNOWN_FAMILY: u8 = 77;

const USAGE: &str = "Usage: script-runner [--family NAME] [-v] FILE...";

fn main() -> ExitCode {
    let Arguments { name, verbose, files } = match arguments(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{}", help());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let family = |file: &PathBuf| match &name {
        Some(name) => family_of(name),
        None => file.canonicalize().ok().and_then(|path| family_of_path(&path)),
    };
    let mut scripts = vec![];
    for file in &files {
        let Some(family) = family(file) else {
            eprintln!("{}: unknown family, known are {}", file.display(), known_families());
            return ExitCode::from(UNKNOWN_FAMILY);
        };
        scripts.push((family, file.as_path()));
    }
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run_all(&scripts, verbose)),
        Err(error) => {
            eprintln!("threads cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_all(scripts: &[(&'static Family, &Path)], verbose: bool) -> ExitCode {
    let mut failed = false;
    for (family, file) in scripts {
        let ran = run(family, file).await;
        let word = if ran.result.is_ok() { "ok  " } else { "FAIL" };
        println!("{word} {} {:.3}s", file.display(), ran.took.as_secs_f64());
        if verbose || ran.result.is_err() {
            println!("{}", indented(&ran.log));
        }
        if let Err(error) = ran.result {
            failed = true;
            println!("    {}", error.replace('\n', "\n    "));
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn known_families() -> String {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
}

fn help() -> String {
    format!(
        "Runs scripts against the cells of their family.\n\n{USAGE}\n\n  \
           --family NAME  the family of all files; otherwise that of each file's path\n  \
           -v             show the log of scripts that pass, too\n  \
           -h, --help     show this\n\n\
         Families: {}\n\
         Exit code: 0 all pass, 1 any fails, {UNKNOWN_FAMILY} a family is not known, 2 wrong command line",
        known_families()
    )
}

fn indented(log: &str) -> String {
    log.lines().map(|line| format!("    | {line}")).collect::<Vec<_>>().join("\n")
}

#[derive(Debug, Default)]
struct Arguments {
    name: Option<String>,
    verbose: bool,
    files: Vec<PathBuf>,
}

/// `None` if help is asked for.
fn arguments(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--family" => arguments.name = Some(words.next().ok_or("--family needs a name")?),
            "-v" => arguments.verbose = true,
            "-h" | "--help" => return Ok(None),
            _ => match word.strip_prefix("--family=") {
                Some(name) => arguments.name = Some(name.to_owned()),
                None if word.starts_with('-') => return Err(format!("unknown option {word}")),
                None => arguments.files.push(PathBuf::from(word)),
            },
        }
    }
    if arguments.files.is_empty() { Err("no files".to_owned()) } else { Ok(Some(arguments)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Arguments>, String> {
        arguments(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn help_is_no_unknown_option() {
        assert!(read("--help").unwrap().is_none() && read("-v -h").unwrap().is_none());
        let help = help();
        assert!(help.contains(USAGE) && FAMILIES.iter().all(|family| help.contains(family.name)), "{help}");
        assert_eq!(read("--halp").unwrap_err(), "unknown option --halp");
        assert_eq!(read("-v").unwrap_err(), "no files");
        let arguments = read("--family example -v a b").unwrap().unwrap();
        assert_eq!(
            (arguments.name.as_deref(), arguments.verbose, arguments.files.len()),
            (Some("example"), true, 2)
        );
    }
}
