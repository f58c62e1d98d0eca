//! Commands on files and folders.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use crate::command::{Run, on_state};
use crate::state::State;
use hive_command::{Call, Command, Flag, Output};

pub(super) fn commands() -> Vec<Command<Run>> {
    vec![
        on_state("cat", "concatenate files and print to the script's stdout buffer", cat).takes("files..."),
        on_state("cd", "change the working directory", cd).takes("dir"),
        on_state("chmod", "change file mode bits", chmod)
            .takes("perm paths...")
            .detail("The mode is a number between 0 and 0777; a leading 0 makes it octal."),
        on_state("cp", "copy files to a target file or directory", cp)
            .takes("src... dst")
            .detail("src may be `stdout` or `stderr`: the buffers."),
        on_state("exists", "check that files exist", exists)
            .takes("file...")
            .flag(Flag::switch("readonly", "they must not be writable"))
            .flag(Flag::switch("exec", "they must be executable")),
        on_state("mkdir", "create directories, if they do not already exist", mkdir).takes("path..."),
        on_state("mv", "rename a file or directory to a new path", mv).takes("old new"),
        on_state("rm", "remove a file or directory", rm)
            .takes("path...")
            .detail("Directories are removed with all they hold; what does not exist is fine."),
        on_state("symlink", "create a symlink", symlink).takes("path -> target"),
    ]
}

async fn cat(state: State, call: Call) -> anyhow::Result<Output> {
    let mut all = vec![];
    for name in call.at_least(1)? {
        match state.read(name) {
            Ok(data) => all.extend(data),
            // The buffers are cleared, because the command has no output.
            Err(error) => return Ok(Output::text("").failed(error)),
        }
    }
    Ok(Output::text(all))
}

async fn cd(state: State, call: Call) -> anyhow::Result<Output> {
    let [folder] = call.exactly()?;
    state.enter(folder)?;
    Ok(Output::none())
}

async fn chmod(state: State, call: Call) -> anyhow::Result<Output> {
    let args = call.at_least(2)?;
    let mode = mode(&args[0]).with_context(|| format!("invalid mode: {}", args[0]))?;
    for name in &args[1..] {
        let path = state.path(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("chmod {}", path.display()))?;
    }
    Ok(Output::none())
}

/// Parses a file mode in Go's number syntax, up to 0777.
fn mode(text: &str) -> Option<u32> {
    let (digits, radix) = match text.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (&text[2..], 16),
        Some("0o") => (&text[2..], 8),
        Some("0b") => (&text[2..], 2),
        _ if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        _ => (text, 10),
    };
    u32::from_str_radix(digits, radix).ok().filter(|mode| *mode <= 0o777 && !digits.starts_with('+'))
}

async fn cp(state: State, call: Call) -> anyhow::Result<Output> {
    let Some((target, sources)) = call.at_least(2)?.split_last() else { bail!("no target") };
    let path = state.path(target);
    let into_folder = path.is_dir();
    ensure!(into_folder || sources.len() == 1, "{target} is not a directory");
    for source in sources {
        let buffer = matches!(source.as_str(), "stdout" | "stderr");
        let data = state.read_or_buffer(source)?;
        let path = if into_folder {
            path.join(Path::new(source).file_name().with_context(|| format!("{source} is no file"))?)
        } else {
            path.clone()
        };
        fs::write(&path, data).with_context(|| format!("write {}", path.display()))?;
        if !buffer {
            let mode = fs::metadata(state.path(source))?.permissions().mode() & 0o777;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(Output::none())
}

async fn exists(state: State, call: Call) -> anyhow::Result<Output> {
    for name in call.at_least(1)? {
        let path = state.path(name);
        let mode = fs::metadata(&path).with_context(|| path.display().to_string())?.permissions().mode();
        ensure!(!call.flags.is_on("readonly") || mode & 0o222 == 0, "{name} exists but is writable");
        ensure!(!call.flags.is_on("exec") || mode & 0o111 != 0, "{name} exists but is not executable");
    }
    Ok(Output::none())
}

async fn mkdir(state: State, call: Call) -> anyhow::Result<Output> {
    for name in call.at_least(1)? {
        let path = state.path(name);
        fs::create_dir_all(&path).with_context(|| format!("mkdir {}", path.display()))?;
    }
    Ok(Output::none())
}

async fn mv(state: State, call: Call) -> anyhow::Result<Output> {
    let [old, new] = call.exactly()?;
    fs::rename(state.path(old), state.path(new)).with_context(|| format!("rename {old} {new}"))?;
    Ok(Output::none())
}

async fn rm(state: State, call: Call) -> anyhow::Result<Output> {
    for name in call.at_least(1)? {
        let path = state.path(name);
        let removed = match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        removed.with_context(|| format!("rm {}", path.display()))?;
    }
    Ok(Output::none())
}

async fn symlink(state: State, call: Call) -> anyhow::Result<Output> {
    let [link, arrow, target] = call.exactly()?;
    ensure!(arrow == "->", "expected `path -> target`");
    std::os::unix::fs::symlink(target, state.path(link)).with_context(|| format!("symlink {link}"))?;
    Ok(Output::none())
}

#[cfg(test)]
mod tests {
    #[test]
    fn modes_are_parsed_as_go_numbers() {
        let modes = ["0444", "0o755", "0x1ff", "493", "0", "0b11"].map(super::mode);
        assert_eq!(modes, [Some(0o444), Some(0o755), Some(0o777), Some(0o755), Some(0), Some(3)]);
        assert!(["01000", "512", "rwx", "", "0+7", "0x", "é"].iter().all(|text| super::mode(text).is_none()));
    }
}
