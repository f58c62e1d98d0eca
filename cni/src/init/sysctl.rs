//! The drop-in file that keeps systemd from turning the reverse path filter on for the datapath's interfaces.

use super::{InitError, file_error, say};
use crate::init::plugin::write_atomically;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The file of Cilium's `cilium-sysctlfix`, byte for byte.
const CONTENT: &str = "
# Disable rp_filter on Cilium interfaces since it may cause mangled packets to be dropped
-net.ipv4.conf.lxc*.rp_filter = 0
-net.ipv4.conf.cilium_*.rp_filter = 0
# The kernel uses max(conf.all, conf.{dev}) as its value, so we need to set .all. to 0 as well.
# Otherwise it will overrule the device specific settings.
net.ipv4.conf.all.rp_filter = 0
";

/// Writes the file if it differs and has systemd apply it; a machine without the folder or without systemd needs neither.
pub(super) fn overwrite(folder: &Path, file: &str, unit: &str, out: &mut dyn Write) -> Result<(), InitError> {
    if !folder.is_dir() {
        say(out, &format!("no folder {}: nothing to overwrite", folder.display()));
        return Ok(());
    }
    let path = folder.join(file);
    if fs::read(&path).is_ok_and(|found| found == CONTENT.as_bytes()) {
        say(out, &format!("{} is up to date", path.display()));
        return Ok(());
    }
    write_atomically(&path, CONTENT.as_bytes(), 0o644).map_err(file_error("write", &path))?;
    say(out, &format!("wrote {}", path.display()));
    let mut command = Command::new("systemctl");
    command.args(["restart", unit]).stdin(Stdio::null());
    match command.output() {
        Ok(output) if output.status.success() => say(out, &format!("restarted {unit}")),
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            say(out, &format!("{unit} is not restarted: {}", reason.trim_end()));
        }
        Err(error) => say(out, &format!("{unit} is not restarted: systemctl: {error}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = |folder: &Path| {
            let mut out = Vec::new();
            overwrite(folder, "99-x.conf", "no-such-unit-of-a-test.service", &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(run(folder.path()).starts_with("wrote "));
        assert_eq!(fs::read_to_string(folder.path().join("99-x.conf")).unwrap(), CONTENT);
        assert!(run(folder.path()).ends_with("99-x.conf is up to date\n"));
        fs::write(folder.path().join("99-x.conf"), "net.ipv4.conf.all.rp_filter = 1\n").unwrap();
        assert!(run(folder.path()).starts_with("wrote "));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
        assert!(run(&folder.path().join("none")).starts_with("no folder "));
    }
}
