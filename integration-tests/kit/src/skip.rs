//! Skips that are counted, and the conditions that lead to them.

use std::io::Write;
use std::path::PathBuf;
use std::{env, fs, thread};

/// What a test function returns when it is skipped; lets [`skip!`](crate::skip)
/// serve tests with and without a `Result`.
pub trait SkipValue {
    /// The value to return.
    fn skipped() -> Self;
}

impl SkipValue for () {
    fn skipped() -> Self {}
}

impl<E> SkipValue for Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

/// Ends the test as skipped: prints `SKIP name: reason`, appends
/// `name<TAB>reason` to the file that `APIARY_SKIPS` names, returns.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::record_skip(module_path!(), &format!($($reason)+));
        return $crate::SkipValue::skipped();
    }};
}

/// Skips the test unless it runs as root.
#[macro_export]
macro_rules! require_root {
    () => {
        if !$crate::is_root() {
            $crate::skip!("needs root");
        }
    };
}

/// Skips the test unless the named program is found in `PATH`.
#[macro_export]
macro_rules! require_command {
    ($name:expr) => {
        if !$crate::has_command($name) {
            $crate::skip!("needs the program {}", $name);
        }
    };
}

/// Skips the test unless the condition holds.
#[macro_export]
macro_rules! require {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            $crate::skip!($($reason)+);
        }
    };
}

/// Counts a skip of the running test; used by [`skip!`](crate::skip).
///
/// # Panics
/// If the file named by `APIARY_SKIPS` cannot be appended to: a skip that
/// nobody counts would look like a pass.
pub fn record_skip(module: &str, reason: &str) {
    let test = match thread::current().name() {
        Some(name) if name != "main" => match module.split_once("::") {
            Some((krate, _)) => format!("{krate}::{name}"),
            None => format!("{module}::{name}"),
        },
        _ => module.to_owned(),
    };
    let reason = reason.replace(['\t', '\n'], " ");
    if let Some(file) = env::var_os("APIARY_SKIPS") {
        let line = format!("{test}\t{reason}\n");
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .and_then(|mut f| f.write_all(line.as_bytes()))
            .expect("APIARY_SKIPS names a file that can be appended to");
    }
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
}

/// Whether the process has root's user id.
#[must_use]
pub fn is_root() -> bool {
    crate::sys::effective_uid() == 0
}

/// Whether `name` is a program in one of the folders of `PATH`.
#[must_use]
pub fn has_command(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| {
        env::split_paths(&path).map(|dir: PathBuf| dir.join(name)).any(|file| file.is_file())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_kinds_of_test_functions_can_skip() {
        fn plain(reached: &mut bool) {
            require!(1 + 1 == 3, "arithmetic {}", "holds");
            *reached = true;
        }
        fn fallible(reached: &mut bool) -> Result<(), String> {
            require_command!("no-such-program-anywhere");
            *reached = true;
            Err("not skipped".into())
        }
        if std::env::var_os("APIARY_SKIPS").is_some() {
            return; // would be counted as skips of the run
        }
        let mut reached = false;
        plain(&mut reached);
        assert_eq!(fallible(&mut reached), Ok(()));
        assert!(!reached);
    }
}
