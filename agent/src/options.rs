//! The options that a Cilium 1.20 agent knows.

use std::sync::Arc;

use hive::config::{Foreign, Kind};
use hive::prelude::*;
use hive::{Setting, Settings};

/// All options of a Cilium 1.20 agent. A configuration that was written for it is accepted: values are checked by their
/// types, and options that no cell declares have no effect, which the cell beside it tells.
pub fn known_options() -> impl Iterator<Item = Foreign> {
    include_str!("options.tsv").lines().filter_map(|line| {
        let mut columns = line.split('\t');
        let (name, kind) = (columns.next()?, Kind::from_name(columns.next()?)?);
        let default = columns.next().unwrap_or_default().to_owned();
        let file_only = columns.next() == Some("file-only");
        Some(Foreign { default, file_only, ..Foreign::new(name, kind) })
    })
}

/// Tells in health which options ask for what this agent does not do.
pub(crate) fn cell() -> Cell {
    module("options", "Options of features that this agent does not have", [invoke(tell)])
}

fn tell(settings: Arc<Settings>, health: Health) {
    let wanted: Vec<String> = settings.unused().iter().filter(is_wanted).map(described).collect();
    if wanted.is_empty() {
        health.ok("Every option that is set is in force");
    } else {
        let message = format!("{} options have no effect in this agent", wanted.len());
        health.degraded(message, wanted.join(", "));
    }
}

/// Asked for, and not what there is anyway. Commands given as options are none that stay in force.
fn is_wanted(setting: &&Setting) -> bool {
    !setting.is_default() && setting.key != "cmdref"
}

fn described(setting: &Setting) -> String {
    format!("{}={}", setting.key, setting.value)
}

#[cfg(test)]
mod tests {
    use hive::Hive;
    use hive::Level;

    use super::*;

    async fn report(options: &[(&str, &str)]) -> (Level, String, String) {
        let builder = Hive::builder(cell()).foreign(known_options());
        let builder = options.iter().fold(builder, |builder, (key, value)| builder.set(*key, value));
        let mut hive = builder.build().unwrap();
        hive.populate().await.unwrap();
        let status = hive.health().at("options").unwrap();
        (status.level, status.message, status.error)
    }

    #[tokio::test]
    async fn options_without_effect_are_named() {
        assert_eq!(report(&[]).await.0, Level::Ok);
        let defaults = [("enable-hubble", "F"), ("k8s-client-burst", "20"), ("tofqdns-min-ttl", "0")];
        assert_eq!(report(&defaults).await.0, Level::Ok);
        let (level, message, error) = report(&[
            ("enable-hubble", "true"),
            ("enable-l7-proxy", "false"),
            ("mesh-auth-gc-interval", "300s"),
            ("identity-allocation-mode", "crd"),
        ])
        .await;
        assert_eq!((level, message.as_str()), (Level::Degraded, "3 options have no effect in this agent"));
        assert_eq!(error, "enable-hubble=true, enable-l7-proxy=false, identity-allocation-mode=crd");
    }
}
