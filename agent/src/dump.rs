//! `agent config`: prints the options in force, each with the source of its value.

use std::fmt::Write as _;

use hive::config::{Kind, Unknown};
use hive::{Setting, Settings};

/// Formats the options in force as a configuration file. Secrets are masked and commented out.
pub(crate) fn text(settings: &Settings) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |setting: &Setting, note: &str| {
        let hidden = if setting.is_secret() { "# " } else { "" };
        let _ = writeln!(text, "{hidden}{}: {}  # {}{note}", setting.key, value(setting), setting.source);
    };
    settings.iter().for_each(|setting| line(setting, if setting.live { "; live" } else { "" }));
    settings.unused().iter().for_each(|setting| line(setting, "; no effect in this agent"));
    for Unknown { key, source, nearest, .. } in settings.unknown() {
        let nearest = nearest.as_ref().map(|nearest| format!("; is {nearest} meant?")).unwrap_or_default();
        let _ = writeln!(text, "# unknown: {key}  # {source}{nearest}");
    }
    text
}

/// Formats a value as YAML: a JSON string is valid YAML, and numbers and bools need no quotes.
fn value(setting: &Setting) -> String {
    match setting.kind {
        Kind::Bool | Kind::Int(_) | Kind::Uint(_) | Kind::Float if !setting.is_secret() => {
            setting.value.clone()
        }
        _ => serde_json::Value::from(setting.value.as_str()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use hive::Hive;
    use hive::prelude::*;

    use super::*;

    #[derive(hive::Config)]
    #[expect(dead_code, reason = "seen in settings only")]
    struct Options {
        #[flag(default = 1500)]
        mtu: u16,
        #[flag(default = "it's \"x\"")]
        name: String,
        #[flag(default = "30s", live)]
        wait: std::time::Duration,
        #[flag(secret, default = "")]
        token: String,
    }

    #[test]
    fn printed_options_parse_to_the_same_values() {
        let folder = tempfile::tempdir().unwrap();
        for (key, value) in
            [("wait", "1m"), ("token", "hunter2"), ("waits", "1s"), ("hubble-drop-events", "true")]
        {
            std::fs::write(folder.path().join(key), value).unwrap();
        }
        let at = folder.path().display().to_string();
        let read = |arg: String| {
            let hive = Hive::builder(config::<Options>()).foreign(agent::known_options()).config_files();
            hive.args([arg]).build().unwrap()
        };
        let hive = read(format!("--config-dir={at}"));
        let printed = text(hive.settings());
        assert_eq!(
            printed.lines().skip(2).collect::<Vec<_>>(),
            [
                "mtu: 1500  # default".to_owned(),
                r#"name: "it's \"x\""  # default"#.to_owned(),
                format!("# token: \"(secret)\"  # file {at}/token"),
                format!("wait: \"1m0s\"  # file {at}/wait; live"),
                format!("hubble-drop-events: true  # file {at}/hubble-drop-events; no effect in this agent"),
                format!("# unknown: waits  # file {at}/waits; is wait meant?"),
            ]
        );
        let file = folder.path().join("again.yaml");
        std::fs::write(&file, &printed).unwrap();
        let again = read(format!("--config={}", file.display()));
        for key in ["mtu", "name", "wait"] {
            assert_eq!(again.settings().get(key).unwrap().value, hive.settings().get(key).unwrap().value);
        }
        assert_eq!(again.settings().unused()[0].key, "hubble-drop-events");
    }
}
