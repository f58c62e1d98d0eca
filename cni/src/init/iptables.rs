//! Rules of others in iptables: those of kube-proxy, which are awaited, and those of the AWS plugin, which are removed.

use super::{InitError, say};
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);
/// Chains that a running kube-proxy or kubelet keeps in the table mangle.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-PROXY-CANARY"];
/// Tools that list the rules, by family and backend; a machine has some of them.
const LISTS: [&str; 4] =
    ["iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"];
/// Chains that masquerade pods' traffic a second time.
const AWS_CHAINS: [&str; 2] = ["AWS-SNAT-CHAIN", "AWS-CONNMARK-CHAIN"];

/// Waits until kube-proxy has written rules, at most `limit` seconds.
pub(super) fn wait_for_kube_proxy(limit: Option<u64>, out: &mut dyn Write) -> Result<(), InitError> {
    let begin = Instant::now();
    loop {
        let found =
            LISTS.iter().find(|tool| list(tool, &["-t", "mangle"]).is_ok_and(|rules| is_hinted(&rules)));
        if let Some(tool) = found {
            say(out, &format!("kube-proxy has written its rules ({tool})"));
            return Ok(());
        }
        if let Some(seconds) = limit.filter(|seconds| begin.elapsed() >= Duration::from_secs(*seconds)) {
            return Err(InitError::NoKubeProxy { seconds });
        }
        say(out, "waiting for kube-proxy to write its rules");
        sleep(INTERVAL);
    }
}

fn is_hinted(rules: &str) -> bool {
    rules.lines().any(|line| {
        line.strip_prefix(':').is_some_and(|chain| HINTS.iter().any(|hint| chain.starts_with(hint)))
    })
}

/// Removes the rules and chains that the AWS plugin has left, in one transaction.
pub(super) fn remove_aws_chains(out: &mut dyn Write) -> Result<(), InitError> {
    let failed = |program: &str| {
        let program = program.to_owned();
        move |error: io::Error| InitError::Program { program, reason: error.to_string() }
    };
    let rules = list("iptables-save", &[]).map_err(failed("iptables-save"))?;
    let Some(kept) = without_aws(&rules) else {
        say(out, "no chains of the AWS plugin");
        return Ok(());
    };
    let restore = || {
        let mut child =
            Command::new("iptables-restore").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(kept.as_bytes())?;
        }
        child.wait_with_output().and_then(checked)
    };
    restore().map_err(failed("iptables-restore"))?;
    say(out, "removed the chains of the AWS plugin");
    Ok(())
}

/// Returns the rules without those that name a chain of the AWS plugin; none if no rule does.
fn without_aws(rules: &str) -> Option<String> {
    let is_aws = |line: &&str| AWS_CHAINS.iter().any(|chain| line.contains(chain));
    let kept = || rules.lines().filter(|line| !is_aws(line));
    let is_changed = rules.lines().any(|line| is_aws(&line));
    is_changed.then(|| kept().fold(String::new(), |text, line| text + line + "\n"))
}

fn list(tool: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).output()?;
    checked(output)
}

fn checked(output: std::process::Output) -> io::Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(io::Error::other(format!(
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "\
*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:AWS-SNAT-CHAIN-0 - [0:0]
-A POSTROUTING -m comment --comment \"AWS SNAT CHAIN\" -j AWS-SNAT-CHAIN-0
-A AWS-SNAT-CHAIN-0 -j RETURN
-A POSTROUTING -j KUBE-POSTROUTING
COMMIT
";

    #[test]
    fn only_chains_of_kube_proxy_count() {
        assert!(is_hinted(RULES));
        assert!(!is_hinted("*mangle\n:PREROUTING ACCEPT [0:0]\n# KUBE-PROXY-CANARY\nCOMMIT\n"));
    }

    #[test]
    fn rules_of_others_stay() {
        let kept = without_aws(RULES).unwrap();
        assert_eq!(kept.lines().count(), RULES.lines().count() - 3);
        assert!(kept.contains("KUBE-POSTROUTING") && !kept.contains("AWS-SNAT"));
        assert_eq!(without_aws(&kept), None);
    }
}
