//! Options that the configuration folder and `PATCH /config` can change.

use std::sync::Arc;

use hive::LiveConfig;
use hive::prelude::*;
use runtime_options::{DEBUG, POLICY_AUDIT_MODE, POLICY_ENFORCEMENT, RuntimeOption};
use statedb::RwTable;

use crate::error::Error;
use crate::spec;

/// Options with a row in the table `runtime-options` that belong to no other cell.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Policy")]
#[config(check = RuntimeConfig::check)]
pub struct RuntimeConfig {
    /// Log debug lines, whatever log-opt says
    #[flag(default = false, live, group = "Log")]
    pub debug: bool,
    /// When traffic without a rule is dropped: default, always or never
    #[flag(default = "default", live)]
    pub enable_policy: String,
    /// Report what policy would drop, and let it pass
    #[flag(default = false, live)]
    pub policy_audit_mode: bool,
}

impl RuntimeConfig {
    fn check(&self) -> Result<(), String> {
        self.options().map(drop).map_err(|error| error.to_string())
    }

    /// Returns the rows of the options.
    fn options(&self) -> Result<Vec<RuntimeOption>, Error> {
        let option = |name, key, value: String| {
            RuntimeOption::new(name, &value).map_err(|wrong| Error::Option {
                key,
                value,
                expected: wrong.expected(),
            })
        };
        // As in Cilium, an empty text means the default.
        let policy = if self.enable_policy.is_empty() { "default" } else { &self.enable_policy };
        Ok(vec![
            option(DEBUG, "debug", self.debug.to_string())?,
            option(POLICY_ENFORCEMENT, "enable-policy", policy.to_owned())?,
            option(POLICY_AUDIT_MODE, "policy-audit-mode", self.policy_audit_mode.to_string())?,
        ])
    }
}

/// Copies changed options of the configuration into the table, whichever struct declares them. A patched option keeps
/// its value until it changes in the configuration.
pub(crate) fn follow(
    own: ConfigWatch<RuntimeConfig>,
    live: Arc<LiveConfig>,
    options: Arc<RwTable<RuntimeOption>>,
    jobs: JobGroup,
) -> anyhow::Result<()> {
    let mut settings = live.watch_settings();
    let mut before = spec::of_settings(&settings.get())?;
    jobs.one_shot("runtime-config", move |cx: JobCx| async move {
        // Held while this runs: the hive accepts changes only of options that have a watch.
        let _own = own;
        loop {
            tokio::select! {
                () = settings.changed() => {}
                () = cx.cancelled() => return Ok(()),
            }
            let now = spec::of_settings(&settings.get())?;
            options.transact(|w| {
                for option in now.iter().filter(|option| !before.contains(option)) {
                    w.insert(option.clone());
                }
            });
            before = now;
        }
    })
    .add();
    Ok(())
}
