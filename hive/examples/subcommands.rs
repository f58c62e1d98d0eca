//! A program with commands, each with options of its own that the others do not know.

#![expect(clippy::print_stdout, reason = "the program prints its result")]

use hive::prelude::*;

#[derive(hive::Config)]
struct Common {
    /// Folder that the program works in
    #[flag(default = "data")]
    folder: String,
}

#[derive(hive::Config)]
struct CleanConfig {
    /// Do not ask
    #[flag(short = 'f')]
    force: bool,
}

#[derive(hive::Config)]
struct ListConfig {
    /// The number of entries to show
    #[flag(default = 10)]
    limit: u32,
}

/// Runs a command line; gives the text for the user.
fn run(args: &[&str]) -> anyhow::Result<String> {
    let hive = Hive::builder([config::<Common>()])
        .command(["clean"], module("clean", "Removes what is old", [config::<CleanConfig>()]))
        .command(["list"], module("list", "Shows what there is", [config::<ListConfig>()]))
        .args(args.iter().copied())
        .build()?;
    if hive.arguments().help {
        return Ok(hive.usage().to_owned());
    }
    let folder = hive.config::<Common>()?.folder;
    match hive.arguments().words.first().map(String::as_str) {
        Some("clean") if hive.config::<CleanConfig>()?.force => Ok(format!("cleaned {folder}")),
        Some("clean") => Ok(format!("would clean {folder}; --force does")),
        Some("list") => Ok(format!("{} entries of {folder}", hive.config::<ListConfig>()?.limit)),
        Some(other) => anyhow::bail!("unknown command {other}: clean or list"),
        None => anyhow::bail!("a command is missing: clean or list"),
    }
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    println!("{}", run(&args)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn each_command_has_its_options() {
        assert_eq!(run(&["clean", "-f", "--folder=old"]).unwrap(), "cleaned old");
        assert_eq!(run(&["list", "--limit=3"]).unwrap(), "3 entries of data");
        let help = run(&["list", "--help"]).unwrap();
        assert!(help.contains("--limit") && !help.contains("--force"), "{help}");
        let error = run(&["list", "--force"]).unwrap_err().to_string();
        assert!(error.contains("unknown flag: --force"), "{error}");
        assert!(run(&["cook"]).unwrap_err().to_string().contains("clean or list"));
    }
}
