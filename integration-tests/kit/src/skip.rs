//! Skips that are counted, and the conditions that lead to them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

/// The return value of a test function that is skipped; lets [`skip!`](crate::skip!)
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

/// Counts a skip of the running test; used by [`skip!`](crate::skip!).
///
/// # Panics
/// If the file named by `APIARY_SKIPS` cannot be appended to: a skip that
/// is not counted would look like a pass.
pub fn record_skip(module: &str, reason: &str) {
    let test = match thread::current().name() {
        Some(name) if name != "main" => test_name(module, name),
        _ => module.to_owned(),
    };
    if let Some(file) = env::var_os("APIARY_SKIPS") {
        append(file.as_ref(), &test, reason).expect("APIARY_SKIPS names a file that can be appended to");
    }
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
}

/// Crate and test: the thread of a test has its name without the crate's.
fn test_name(module: &str, thread: &str) -> String {
    let krate = module.split("::").next().unwrap_or(module);
    format!("{krate}::{thread}")
}

fn append(file: &Path, test: &str, reason: &str) -> std::io::Result<()> {
    let line = format!("{test}\t{}\n", reason.replace(['\t', '\n'], " "));
    let mut file = fs::OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(line.as_bytes())
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
    use super::*;

    #[test]
    fn skips_are_appended_with_name_and_reason() {
        let file = env::temp_dir().join(format!("apiary-skips-{}", std::process::id()));
        append(&file, &test_name("maps::tests", "size::tests::all"), "needs\ta kernel").unwrap();
        append(&file, &test_name("kernel", "pins"), "needs root").unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(text, "maps::size::tests::all\tneeds a kernel\nkernel::pins\tneeds root\n");
    }

    #[test]
    fn conditions_that_hold_do_not_skip() {
        let mut reached = false;
        let mut test = || -> Result<(), String> {
            require!(1 + 1 == 2, "arithmetic fails");
            require_command!("sh");
            reached = true;
            <Result<(), String>>::skipped()
        };
        assert_eq!(test(), Ok(()));
        assert!(reached && !has_command("no-such-program-anywhere"));
    }
}
