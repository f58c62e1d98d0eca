//! The version of the Envoy that has the agent's sockets, compared with the one that the agent's resources are made for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use hive::JobCx;
use serde_json::Value;
use tokio::time::sleep;

use crate::process::admin;

/// The commit of Cilium's Envoy that the chart installs; its filters are those of the policies and listeners here.
const EXPECTED: &str = "cbec91f666af0bf742da986d43832932dbb26b82";
/// The time until the first check: an Envoy that is started with the agent has its socket by then.
const FIRST: Duration = Duration::from_secs(10);
/// The time between checks, as in Cilium.
const INTERVAL: Duration = Duration::from_secs(120);
/// The shortest abbreviation of a commit that counts as one.
const MIN_COMMIT: usize = 7;

/// Compares versions until the job is cancelled.
pub(crate) struct VersionCheck {
    /// Envoy's socket of administration.
    pub(crate) admin: PathBuf,
}

impl VersionCheck {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Envoy has not been asked for its version");
        let mut wait = FIRST;
        let mut is_known = false;
        while cx.token().run_until_cancelled(sleep(wait)).await.is_some() {
            let found = cx.token().run_until_cancelled(self.version()).await;
            match found {
                None => break,
                Some(Err(error)) => {
                    // Jobs of listeners and of the process report an Envoy that is missed.
                    tracing::debug!(error = %format!("{error:#}"), "Envoy does not report its version");
                    cx.health.ok("Envoy is not there");
                    is_known = false;
                }
                Some(Ok(version)) if is_expected(&version) => {
                    cx.health.ok(format_args!("Envoy has the expected version {version}"));
                    is_known = false;
                }
                Some(Ok(version)) => {
                    cx.health.degraded(
                        "Envoy has another version than its policies are made for",
                        fault(&version),
                    );
                    // It may be about to be replaced: one that stays is an error.
                    match is_known {
                        false => tracing::info!(%version, expected = EXPECTED, "Envoy has another version"),
                        true => tracing::error!(%version, expected = EXPECTED, "Envoy has another version"),
                    }
                    is_known = true;
                }
            }
            wait = INTERVAL;
        }
        Ok(())
    }

    async fn version(&self) -> anyhow::Result<String> {
        let body = admin::get(&self.admin, "/server_info").await?;
        let info: Value = serde_json::from_slice(&body).context("server_info is no JSON")?;
        let version = info.get("version").and_then(Value::as_str);
        Ok(version.context("server_info has no version")?.to_owned())
    }
}

/// Returns the fault of a version, with its remedy.
fn fault(version: &str) -> String {
    format!(
        "{version} instead of {EXPECTED}: install the Envoy of this version's chart, or set \
         disable-envoy-version-check if it is known to fit"
    )
}

/// Whether a version, `COMMIT/VERSION/STATE/TYPE/SSL`, is of the expected commit.
fn is_expected(version: &str) -> bool {
    let commit = version.split('/').next().unwrap_or_default();
    commit.len() >= MIN_COMMIT && EXPECTED.starts_with(commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_decides() {
        let rest = "1.37.6/Distribution/RELEASE/BoringSSL";
        assert!(
            is_expected(&format!("{EXPECTED}/{rest}")) && is_expected(&format!("{}/{rest}", &EXPECTED[..12]))
        );
        for other in ["", "/", "cbec/1.37.6", &format!("{EXPECTED}0/1"), &format!("0000000/{rest}"), rest] {
            assert!(!is_expected(other), "{other}");
        }
        assert!(fault("a/1").contains("disable-envoy-version-check"));
    }

    #[test]
    fn the_chart_installs_the_expected_version() {
        let values = include_str!("../../../../../helm/apiary/values.yaml");
        let (_, image) = values.split_once("repository: quay.io/cilium/cilium-envoy").unwrap();
        let tag = image.lines().find_map(|line| line.trim().strip_prefix("tag: ")).unwrap();
        assert_eq!(tag.rsplit('-').next(), Some(EXPECTED));
    }
}
