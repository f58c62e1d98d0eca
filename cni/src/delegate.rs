//! Delegated IPAM: the plugin that `ipam.type` names allocates addresses instead of the agent.

use crate::agent::AddressPair;
use crate::config::NetworkConfig;
use crate::error::Error;
use crate::invocation::Invocation;
use serde::Deserialize;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

/// Runs the plugin's ADD; returns the addresses of its result and ignores the rest.
pub(crate) fn add(
    plugin: &str,
    invocation: &Invocation,
    config: &NetworkConfig,
) -> Result<AddressPair, Error> {
    let output = run(plugin, "ADD", invocation, config)?;
    addresses(&output).map_err(|reason| Error::Delegate { plugin: plugin.into(), command: "ADD", reason })
}

/// Runs a verb of the plugin with this call's variables and configuration; returns what it wrote to stdout.
pub(crate) fn run(
    plugin: &str,
    command: &'static str,
    invocation: &Invocation,
    config: &NetworkConfig,
) -> Result<Vec<u8>, Error> {
    let failed = |reason: String| Error::Delegate { plugin: plugin.into(), command, reason };
    if plugin.contains('/') {
        return Err(failed("want the name of a file in CNI_PATH, not a path".into()));
    }
    let program = invocation
        .plugin_path
        .iter()
        .map(|folder| folder.join(plugin))
        .find(|path| path.is_file())
        .ok_or_else(|| failed(format!("no such file in CNI_PATH {:?}", invocation.plugin_path)))?;
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("{}: {error}", program.display())))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A write error means that the plugin has not read its configuration; its output has the reason.
        let _ = stdin.write_all(&config.raw);
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(output.stdout) } else { Err(failed(describe(&output.stdout))) }
}

pub(crate) fn describe(stdout: &[u8]) -> String {
    #[derive(Deserialize)]
    struct View {
        msg: String,
        #[serde(default)]
        details: String,
    }
    match serde_json::from_slice::<View>(stdout) {
        Ok(View { msg, details }) if details.is_empty() => msg,
        Ok(View { msg, details }) => format!("{msg}; {details}"),
        Err(_) => format!("it failed without an error document: {:?}", String::from_utf8_lossy(stdout)),
    }
}

/// Returns the addresses of a result of any version, one per family.
pub(crate) fn addresses(stdout: &[u8]) -> Result<AddressPair, String> {
    #[derive(Deserialize)]
    struct View {
        #[serde(default)]
        ips: Vec<Ip>,
        ip4: Option<Old>,
        ip6: Option<Old>,
    }
    #[derive(Deserialize)]
    struct Ip {
        address: String,
    }
    #[derive(Deserialize)]
    struct Old {
        ip: String,
    }
    let view: View =
        serde_json::from_slice(stdout).map_err(|error| format!("cannot decode its result: {error}"))?;
    let old = [view.ip4, view.ip6].into_iter().flatten().map(|old| old.ip);
    let mut pair = AddressPair::default();
    for address in view.ips.into_iter().map(|ip| ip.address).chain(old) {
        let ip = address.split('/').next().unwrap_or_default();
        match ip.parse() {
            Ok(IpAddr::V4(_)) => pair.ipv4 = address,
            Ok(IpAddr::V6(_)) => pair.ipv6 = address,
            Err(_) => return Err(format!("invalid address {address:?} in its result")),
        }
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_old_and_new_results() {
        let new = addresses(br#"{"ips":[{"address":"fd00::5/64"},{"address":"10.0.0.5/24"}]}"#).unwrap();
        assert_eq!((new.ipv4.as_str(), new.ipv6.as_str()), ("10.0.0.5/24", "fd00::5/64"));
        let old = addresses(br#"{"ip4":{"ip":"10.0.0.5/24"}}"#).unwrap();
        assert_eq!((old.ipv4.as_str(), old.ipv6.as_str()), ("10.0.0.5/24", ""));
        assert!(addresses(br#"{"ips":[{"address":"x"}]}"#).is_err());
        assert!(addresses(b"").is_err());
    }

    #[test]
    fn errors_of_a_failed_plugin() {
        assert_eq!(
            describe(br#"{"code":11,"msg":"no address","details":"range is full"}"#),
            "no address; range is full"
        );
        assert_eq!(describe(b"oops"), "it failed without an error document: \"oops\"");
    }
}
