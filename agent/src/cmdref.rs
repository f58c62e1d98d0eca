//! `agent --cmdref DIR`: writes the command reference into a file, as Cilium does, instead of running.

use std::path::{Path, PathBuf};
use std::{fs, io};

use hive::prelude::*;
use hive::{ConfigError, Hive};

/// File name that Cilium's documentation expects.
const NAME: &str = "cilium-agent.md";

/// Options of the command reference.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Files")]
struct ReferenceConfig {
    /// Write the command reference into this folder instead of running
    #[flag(default = "", hidden)]
    cmdref: PathBuf,
}

/// Declares the option.
pub(crate) fn cell() -> Cell {
    module("cmdref", "The command reference", [config::<ReferenceConfig>()])
}

/// Returns the folder to write the reference to, if one is configured.
pub(crate) fn folder(hive: &Hive) -> Result<Option<PathBuf>, ConfigError> {
    let folder = hive.config::<ReferenceConfig>()?.cmdref;
    Ok(Some(folder).filter(|folder| !folder.as_os_str().is_empty()))
}

/// Writes the reference. Returns its path.
pub(crate) fn write(folder: &Path, usage: &str, options: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(NAME);
    let text = format!(
        "## cilium-agent\n\nRun the agent\n\n```\n{}\n```\n\n### Options\n\n```\n{}\n```\n",
        usage.trim_end(),
        options.trim_end()
    );
    fs::write(&path, text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_usage_and_options() {
        let folder = std::env::temp_dir().join(format!("apiary-cmdref-{}", std::process::id()));
        let path = write(&folder, "Usage: agent\n", "  --debug\n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(path.ends_with("cilium-agent.md"));
        let options = "### Options\n\n```\n  --debug\n```\n";
        assert!(text.starts_with("## cilium-agent\n") && text.ends_with(options), "{text}");
    }
}
