//! Subcommands of a program with options of their own, and options that a program reads before its hive starts.

use std::path::PathBuf;

use hive::prelude::*;
use hive::{ConfigError, HiveBuilder, HiveError};

#[derive(Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Clean")]
struct Clean {
    /// Do not ask
    #[flag(short = 'f')]
    force: bool,
    /// Where to
    #[flag(short = 'o', default = "/tmp")]
    out: PathBuf,
}

#[derive(Debug, PartialEq, Eq, hive::Config)]
struct Common {
    /// Where
    #[flag(default = "/run")]
    folder: PathBuf,
}

fn builder(args: &[&str]) -> HiveBuilder {
    let clean = module("clean", "Cleans up", [config::<Clean>()]);
    Hive::builder(config::<Common>()).command(["clean", "wipe"], clean).args(args.iter().copied())
}

fn errors(args: &[&str]) -> Vec<String> {
    match builder(args).build() {
        Err(HiveError::Config(errors)) => errors.iter().map(ConfigError::to_string).collect(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{args:?} is taken"),
    }
}

#[test]
fn options_of_a_subcommand_exist_only_with_it() {
    let clean = |args: &[&str]| builder(args).build().unwrap().config::<Clean>().unwrap();
    let out = |force, out: &str| Clean { force, out: out.into() };
    assert_eq!(clean(&["clean"]), out(false, "/tmp"));
    for args in [["-f", "wipe", "-o", "/x"].as_slice(), &["--out=/x", "--force", "clean"]] {
        assert_eq!(clean(args), out(true, "/x"), "{args:?}");
    }
    assert_eq!(clean(&["clean", "-o=/x", "-f=false"]), out(false, "/x"));
    let usage = builder(&["clean"]).build().unwrap().usage().to_owned();
    assert!(usage.contains("\nClean:\n  -f, --force bool"), "{usage}");

    let none = builder(&[]).build().unwrap();
    assert!(!none.usage().contains("force"));
    let error = none.config::<Clean>().unwrap_err();
    assert!(matches!(&error, ConfigError::Undeclared { key, .. } if key == "force"), "{error}");
}

/// A value that equals a subcommand, or an operand of another one, is no subcommand.
#[test]
fn only_the_first_word_is_a_subcommand() {
    for args in [["--folder", "clean"].as_slice(), &["other", "clean"]] {
        let hive = builder(args).build().unwrap();
        assert!(hive.config::<Clean>().is_err(), "{args:?}");
    }
    // It is the value of the subcommand's own option.
    let hive = builder(&["clean", "--out", "wipe"]).build().unwrap();
    assert_eq!(hive.config::<Clean>().unwrap().out, PathBuf::from("wipe"));
    assert_eq!(hive.arguments().words, ["clean"]);
}

#[test]
fn errors_are_those_of_other_options() {
    assert_eq!(errors(&["--force"]), ["unknown flag: --force"]);
    assert_eq!(errors(&["-f"]), ["unknown shorthand flag: -f"]);
    assert_eq!(errors(&["clean", "--forse"]), ["unknown flag: --forse (did you mean --force?)"]);
    assert_eq!(errors(&["clean", "-fo"]), ["unknown shorthand flag: -fo"]);
    assert_eq!(errors(&["clean", "-o"]), ["flag needs an argument: --out"]);
    assert_eq!(
        errors(&["clean", "--force=perhaps"]),
        ["command line: option force: \"perhaps\" is not a bool (true, false, 1, 0, t, f)"]
    );
}

/// A letter that two options declare is an error of the program.
#[test]
fn short_letters_are_unique() {
    #[derive(hive::Config)]
    #[expect(dead_code, reason = "never read")]
    struct Other {
        #[flag(short = 'f')]
        folder_of_others: String,
    }
    let error = Hive::builder([config::<Clean>(), config::<Other>()]).build().err().unwrap().to_string();
    assert!(error.contains("-f") && error.contains("Clean") && error.contains("Other"), "{error}");
}

/// A program reads the same options before the start as the cells do.
#[test]
fn the_program_reads_what_its_cells_read() {
    let builder = builder(&[]).env("X_", [("X_FOLDER", "/var")]);
    assert_eq!(builder.build().unwrap().config::<Common>().unwrap(), Common { folder: "/var".into() });
}
