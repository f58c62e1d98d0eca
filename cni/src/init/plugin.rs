//! The plugin's files on the node: its binary, and its configuration when the agent is uninstalled.

use super::{InitError, Variables, file_error, say, switch};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The names of the plugin: as configurations name it, and its own.
const PLUGIN: [&str; 2] = ["cilium-cni", "apiary-cni"];
const LOOPBACK: &str = "loopback";
/// The files of earlier versions and of this one.
const CONFIGURATIONS: [&str; 5] = [
    "10-cilium-cni.conf",
    "00-cilium-cni.conf",
    "05-cilium-cni.conf",
    "05-cilium.conf",
    "05-cilium.conflist",
];
const BACKUP: &str = ".cilium_bak";

/// Copies this binary, and the loopback plugin beside it where the folder has none. A runtime that starts the plugin
/// meanwhile starts the old or the new one.
pub(super) fn install(folder: &Path, variables: Variables<'_>, out: &mut dyn Write) -> Result<(), InitError> {
    let [overwrite, overwrite_loopback] =
        [switch(variables, "OVERWRITE_CILIUM", true)?, switch(variables, "OVERWRITE_LOOPBACK", false)?];
    let own = std::env::current_exe().map_err(file_error("find", Path::new("/proc/self/exe")))?;
    let binary = fs::read(&own).map_err(file_error("read", &own))?;
    if !folder.is_dir() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        return Err(file_error("find the folder of plugins", folder)(missing));
    }
    for name in PLUGIN {
        copy(&binary, &folder.join(name), overwrite, out)?;
    }
    // Runtimes bring their own loopback plugin: Cilium ignores its absence, too.
    match fs::read(own.with_file_name(LOOPBACK)) {
        Ok(loopback) => copy(&loopback, &folder.join(LOOPBACK), overwrite_loopback, out),
        Err(_) => Ok(()),
    }
}

fn copy(binary: &[u8], target: &Path, overwrite: bool, out: &mut dyn Write) -> Result<(), InitError> {
    let reading = || File::open(target)?.metadata();
    match reading() {
        Ok(_) if !overwrite => say(out, &format!("{} stays as it is", target.display())),
        Ok(found) if found.permissions().mode() & 0o111 == 0o111 && is_equal(binary, target) => {
            say(out, &format!("{} is up to date", target.display()));
        }
        _ => {
            write_atomically(target, binary, 0o755).map_err(file_error("write", target))?;
            say(out, &format!("wrote {}", target.display()));
        }
    }
    Ok(())
}

fn is_equal(binary: &[u8], target: &Path) -> bool {
    fs::metadata(target).is_ok_and(|found| found.len() == binary.len() as u64)
        && fs::read(target).is_ok_and(|found| found == binary)
}

/// Writes a file by a rename of a draft that is on disk; an interrupted one is overwritten by the next.
pub(super) fn write_atomically(target: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let draft = target.with_file_name(format!(".{name}.new"));
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&draft)?;
    // The mode of a draft that was there, and of one that the umask has changed.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, target)
}

/// Removes the plugin's configurations if the agent's option `cni-uninstall` is true, so that the runtime starts no pods that
/// nothing connects.
pub(super) fn uninstall(
    folder: &Path,
    config: &Path,
    variables: Variables<'_>,
    out: &mut dyn Write,
) -> Result<(), InitError> {
    let option = config.join("cni-uninstall");
    let value = match fs::read_to_string(&option) {
        Ok(value) => value,
        Err(error) if error.kind() == io::ErrorKind::NotFound => "false".to_owned(),
        Err(error) => return Err(file_error("read", &option)(error)),
    };
    if !switch(&|_| Some(value.trim().to_owned()), "cni-uninstall", false)? {
        say(out, "cni-uninstall is not true: the CNI configuration stays");
        return Ok(());
    }
    if switch(variables, "CILIUM_CUSTOM_CNI_CONF", false)? {
        say(out, "the CNI configuration is the user's own: it stays");
        return Ok(());
    }
    for name in names(folder)? {
        let is_own = name.contains("cilium") && (name.ends_with(".conf") || name.ends_with(".conflist"));
        if is_own {
            remove(&folder.join(name), out)?;
        }
    }
    Ok(())
}

/// Removes the plugin's configurations, that at `written` as well, and gives those of other networks their names back.
pub(super) fn restore_networks(written: &Path, out: &mut dyn Write) -> Result<(), InitError> {
    let folder = written.parent().unwrap_or(Path::new("/"));
    for path in CONFIGURATIONS.iter().map(|name| folder.join(name)).chain([written.to_owned()]) {
        remove(&path, out)?;
    }
    for name in names(folder)? {
        let Some(original) = name.strip_suffix(BACKUP) else { continue };
        // One that has been written since is newer than its backup.
        if !folder.join(original).exists() && !CONFIGURATIONS.contains(&original) {
            let (from, to) = (folder.join(&name), folder.join(original));
            fs::rename(&from, &to).map_err(file_error("rename", &from))?;
            say(out, &format!("restored {}", to.display()));
        }
    }
    Ok(())
}

/// Returns the names in a folder in order; none if there is no folder.
fn names(folder: &Path) -> Result<Vec<String>, InitError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error("list", folder)(error)),
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn remove(path: &Path, out: &mut dyn Write) -> Result<(), InitError> {
    match fs::remove_file(path) {
        Ok(()) => say(out, &format!("removed {}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(file_error("remove", path)(error)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install_into(folder: &Path, variables: &[(&str, &str)]) -> Result<String, InitError> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let mut out = Vec::new();
        install(folder, &variable, &mut out).map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_plugin_is_installed_replaced_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let plugin = folder.path().join("cilium-cni");
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(install_into(folder.path(), &[]).unwrap().matches("wrote ").count(), 2);
        assert_eq!(install_into(folder.path(), &[]).unwrap().matches("is up to date").count(), 2);
        assert!(fs::read(&plugin).unwrap() == own, "the plugin is this binary");

        // An interrupted step has left a draft, another agent its plugin.
        fs::write(folder.path().join(".cilium-cni.new"), "half").unwrap();
        fs::write(&plugin, "another").unwrap();
        assert!(
            install_into(folder.path(), &[("OVERWRITE_CILIUM", "false")]).unwrap().contains("stays as it is")
        );
        assert_eq!(fs::read(&plugin).unwrap(), b"another");
        // One that runs can be replaced: its file stays until it ends.
        install_into(folder.path(), &[]).unwrap();
        assert!(fs::read(&plugin).unwrap() == own);
        assert_eq!(fs::metadata(&plugin).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left");

        let error = install_into(folder.path(), &[("OVERWRITE_CILIUM", "yes")]).unwrap_err();
        insta::assert_snapshot!(error, @r#"variable OVERWRITE_CILIUM is "yes", want true or false"#);
        let error = install_into(Path::new("/nonexistent/bin"), &[]).unwrap_err();
        insta::assert_snapshot!(error, @"unable to find the folder of plugins /nonexistent/bin: entity not found");
    }

    #[test]
    fn only_an_uninstallation_removes_the_configuration() {
        let (folder, config) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["05-cilium.conflist", "10-aws.conflist", "old-cilium.conf", "cilium.txt"] {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        let run = |custom: &str| {
            let mut out = Vec::new();
            let custom = custom.to_owned();
            uninstall(folder.path(), config.path(), &|_| Some(custom.clone()), &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        assert!(run("").unwrap().starts_with("cni-uninstall is not true"));
        fs::write(config.path().join("cni-uninstall"), "maybe\n").unwrap();
        insta::assert_snapshot!(run("").unwrap_err(), @r#"variable cni-uninstall is "maybe", want true or false"#);
        fs::write(config.path().join("cni-uninstall"), "true\n").unwrap();
        assert!(run("true").unwrap().contains("it stays"));
        assert_eq!(names(folder.path()).unwrap().len(), 4);
        assert_eq!(run("").unwrap().matches("removed ").count(), 2);
        assert_eq!(names(folder.path()).unwrap(), ["10-aws.conflist", "cilium.txt"]);
        assert_eq!(run("").unwrap(), "", "a second time there is nothing to remove");
    }

    #[test]
    fn other_networks_get_their_names_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["05-cilium.conflist", "a.conf.cilium_bak", "b.conf.cilium_bak", "own.conflist"] {
            fs::write(path(name), "{}").unwrap();
        }
        fs::write(path("b.conf"), "newer").unwrap();
        fs::write(path("05-cilium.conf.cilium_bak"), "{}").unwrap();
        restore_networks(&path("own.conflist"), &mut Vec::new()).unwrap();
        let left = ["05-cilium.conf.cilium_bak", "a.conf", "b.conf", "b.conf.cilium_bak"];
        assert_eq!(names(folder.path()).unwrap(), left);
        assert_eq!(fs::read_to_string(path("b.conf")).unwrap(), "newer");
        restore_networks(&path("own.conflist"), &mut Vec::new()).unwrap();
        restore_networks(Path::new("/nonexistent/x.conflist"), &mut Vec::new()).unwrap();
        assert_eq!(names(folder.path()).unwrap(), left);
    }
}
