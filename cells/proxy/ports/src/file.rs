//! The ports of the previous run: Cilium's file, or the comments of rules of iptables.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use policy_engine::Parser;
use serde::{Deserialize, Serialize};
use state_file::StateFile;

use crate::port::{PortState, ProxyPort};

/// The name of the file in the state folder, as in Cilium.
pub(crate) const FILE: &str = "proxy_ports_state.json";

/// The proxies with names of their own; others are listeners of Envoy configurations.
const KNOWN: [(&str, Parser, bool); 5] = [
    ("cilium-dns-egress", Parser::Dns, false),
    ("cilium-http-egress", Parser::Http, false),
    ("cilium-http-ingress", Parser::Http, true),
    ("cilium-tls-egress", Parser::Tls, false),
    ("cilium-tls-ingress", Parser::Tls, true),
];

/// Reads the ports of proxies from rules of the previous run, which the owner of these rules provides. Blocks.
pub struct RuleReader(Box<dyn Fn() -> BTreeMap<String, u16> + Send + Sync>);

impl RuleReader {
    /// Returns a reader that calls `read`, which returns ports by the names of their proxies.
    pub fn new(read: impl Fn() -> BTreeMap<String, u16> + Send + Sync + 'static) -> RuleReader {
        RuleReader(Box::new(read))
    }

    /// Reads the ports.
    pub(crate) fn read(&self) -> Vec<ProxyPort> {
        let row = |(name, port): (String, u16)| {
            let known = KNOWN.iter().find(|(known, ..)| *known == name);
            let (parser, ingress) =
                known.map_or((Parser::Custom, false), |(_, parser, ingress)| (*parser, *ingress));
            restored(&name, parser, ingress, port)
        };
        (self.0)().into_iter().map(row).collect()
    }
}

impl fmt::Debug for RuleReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuleReader")
    }
}

/// A port in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedPort {
    #[serde(rename = "type")]
    parser: String,
    #[serde(default)]
    ingress: bool,
    port: u16,
}

fn restored(name: &str, parser: Parser, ingress: bool, port: u16) -> ProxyPort {
    let (references, former) = (0, Vec::new());
    ProxyPort { name: name.into(), parser, ingress, port, state: PortState::Restored, references, former }
}

/// Returns the ports in the file; `None` if there is none, it is older than `limit`, or it cannot be read: a lost port
/// costs connections that are redirected at the moment, no more.
pub(crate) fn read(file: &StateFile, limit: Duration) -> Option<Vec<ProxyPort>> {
    let modified = std::fs::metadata(file.path()).ok()?.modified().ok()?;
    // A time in the future means that the clock was set back: the file is not old.
    if modified.elapsed().is_ok_and(|age| age > limit) {
        return None;
    }
    match file.read_text() {
        Ok(text) => parse(&text?)
            .inspect_err(|error| tracing::warn!(%error, file = FILE, "The ports of proxies are not restored"))
            .ok(),
        Err(error) => {
            tracing::warn!(%error, file = FILE, "The ports of proxies are not restored");
            None
        }
    }
}

fn parse(text: &str) -> Result<Vec<ProxyPort>, serde_json::Error> {
    let saved: BTreeMap<String, SavedPort> = serde_json::from_str(text)?;
    let row = |(name, saved): (String, SavedPort)| {
        let kinds = [Parser::Tls, Parser::Http, Parser::Dns];
        let parser = kinds.into_iter().find(|kind| kind.name() == saved.parser).unwrap_or(Parser::Custom);
        (saved.port != 0).then(|| restored(&name, parser, saved.ingress, saved.port))
    };
    Ok(saved.into_iter().filter_map(row).collect())
}

/// Returns the content of the file: the ports that redirects use, and those that are kept for their proxies. `None`
/// without any.
pub(crate) fn content<'a>(rows: impl Iterator<Item = &'a ProxyPort>) -> Option<String> {
    let kept = |row: &&ProxyPort| {
        let is_kept = match row.state {
            PortState::Restored | PortState::Ready | PortState::Withdrawn { .. } => true,
            PortState::Reserved | PortState::Listening => false,
        };
        is_kept && row.port != 0
    };
    let saved = rows.filter(kept).map(|row| {
        let parser = row.parser.name().to_owned();
        (row.name.to_string(), SavedPort { parser, ingress: row.ingress, port: row.port })
    });
    let saved: BTreeMap<String, SavedPort> = saved.collect();
    (!saved.is_empty()).then(|| serde_json::to_string(&saved).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = r#"{"cilium-dns-egress":{"type":"dns","ingress":false,"port":41015}}"#;

    #[test]
    fn files_have_the_form_of_cilium() {
        let rows = parse(RECORDED).unwrap();
        assert_eq!(rows, [restored("cilium-dns-egress", Parser::Dns, false, 41_015)]);
        let mut rows = rows;
        let listening =
            ProxyPort { state: PortState::Listening, port: 1, ..restored("b", Parser::Http, true, 1) };
        rows.push(listening);
        assert_eq!(content(rows.iter()).as_deref(), Some(RECORDED), "no rule leads to the other yet");
        assert_eq!(content([].iter()), None);
    }

    #[test]
    fn old_and_damaged_files_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join(FILE));
        let hour = Duration::from_secs(3600);
        assert_eq!(read(&file, hour), None);
        file.write(RECORDED.as_bytes()).unwrap();
        assert_eq!(read(&file, hour).unwrap().len(), 1);
        let opened = std::fs::File::options().write(true).open(file.path()).unwrap();
        let modified = opened.metadata().unwrap().modified().unwrap();
        opened.set_modified(modified - 2 * hour).unwrap();
        assert_eq!(read(&file, hour), None);
        file.write(b"{").unwrap();
        assert_eq!(read(&file, hour), None);
    }

    #[test]
    fn names_in_rules_have_their_kind() {
        let ports =
            BTreeMap::from([("cilium-http-ingress".to_owned(), 10_001), ("a/b/c".to_owned(), 10_002)]);
        let rows = RuleReader::new(move || ports.clone()).read();
        let found: Vec<_> = rows.iter().map(|row| (&*row.name, row.parser, row.ingress, row.port)).collect();
        let expected =
            [("a/b/c", Parser::Custom, false, 10_002), ("cilium-http-ingress", Parser::Http, true, 10_001)];
        assert_eq!(found, expected);
    }
}
