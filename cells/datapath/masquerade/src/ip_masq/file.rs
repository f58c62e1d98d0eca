//! The file of ip-masq-agent.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use k8s_tables::{Document, Problem};
use serde_json::{Map, Value};

/// The maximum size of the file in bytes: that of a ConfigMap.
const MAX_FILE: u64 = 1 << 20;
/// The maximum number of ranges of a family: the capacity of the maps.
pub(crate) const MAX_RANGES: usize = 16_384;
/// The maximum number of errors in a report.
const MAX_REPORTED_ERRORS: usize = 8;

/// Ranges without a file, or with an empty one: private and reserved networks, as in Cilium.
const DEFAULTS: [&str; 11] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
];
/// Ranges of addresses of a link.
const LINK_LOCAL: [(&str, &str); 2] =
    [("masqLinkLocal", "169.254.0.0/16"), ("masqLinkLocalIPv6", "fe80::/10")];

/// The content of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    /// Ranges of both families, without bits outside of their masks.
    pub(super) ranges: BTreeSet<IpNetwork>,
    /// Keys without effect.
    pub(super) unknown: Vec<String>,
}

/// The reason why a file is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{} cannot be read: {source}; let the agent read it", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}: {}", path.display(), .faults.join("; "))]
    Wrong { path: PathBuf, faults: Vec<String> },
}

/// Reads a file; a missing one has the default ranges. Does not block on pipes, reads no more than a ConfigMap has.
pub(super) fn read(path: &Path) -> Result<Ranges, FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
    let wrong = |faults| FileError::Wrong { path: path.to_owned(), faults };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return parse(b"").map_err(wrong),
        file => file.map_err(unreadable)?,
    };
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(wrong(vec!["is no regular file; put a file in its place".to_owned()]));
    }
    let mut content = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > MAX_FILE {
        return Err(wrong(vec![format!("is too long; shorten it to {MAX_FILE} bytes")]));
    }
    parse(&content).map_err(wrong)
}

/// Parses the content of a file. One without a list has no ranges but those of links; an empty one has the defaults.
fn parse(content: &[u8]) -> Result<Ranges, Vec<String>> {
    let mut documents = k8s_tables::documents_of_bytes(content).into_iter();
    let Some(document) = documents.next() else {
        let defaults = DEFAULTS.iter().chain(LINK_LOCAL.iter().map(|(_, range)| range));
        return Ok(Ranges { ranges: defaults.map(|range| known(range)).collect(), unknown: Vec::new() });
    };
    let document = document.map_err(|broken| vec![broken.to_string()])?;
    if let Some(second) = documents.next() {
        let line = second.map_or_else(|broken| broken.line, |document| document.line);
        return Err(vec![format!("line {line}: is a second document; join both into one")]);
    }
    let empty = Map::new();
    let mut faults = Vec::new();
    let ranges = match &document.value {
        Value::Null => of_object(&empty, &mut faults),
        Value::Object(object) => of_object(object, &mut faults),
        _ => return Err(texts(&document, &[Problem::new("", "expected an object with nonMasqueradeCIDRs")])),
    };
    if faults.is_empty() { Ok(ranges) } else { Err(texts(&document, &faults)) }
}

fn of_object(object: &Map<String, Value>, faults: &mut Vec<Problem>) -> Ranges {
    let mut found = Ranges::default();
    for (key, value) in object {
        match key.as_str() {
            "nonMasqueradeCIDRs" => match value {
                Value::Null => {}
                Value::Array(items) => {
                    for (at, item) in items.iter().enumerate() {
                        match range(item) {
                            Some(range) => _ = found.ranges.insert(range),
                            None => faults
                                .push(Problem::new(format!("nonMasqueradeCIDRs[{at}]"), wrong_range(item))),
                        }
                    }
                }
                _ => faults.push(Problem::new(key, "expected a list of ranges")),
            },
            "masqLinkLocal" | "masqLinkLocalIPv6" if value.is_boolean() || value.is_null() => {}
            "masqLinkLocal" | "masqLinkLocalIPv6" => {
                faults.push(Problem::new(key, format!("{value} is wrong; give true or false")));
            }
            // A key of ip-masq-agent's own file: this one is followed, not read at intervals.
            "resyncInterval" => {}
            _ => found.unknown.push(key.clone()),
        }
    }
    for (key, range) in LINK_LOCAL {
        if object.get(key) != Some(&Value::Bool(true)) {
            found.ranges.insert(known(range));
        }
    }
    for (family, count) in [
        ("IPv4", found.ranges.iter().filter(|range| range.is_ipv4()).count()),
        ("IPv6", found.ranges.iter().filter(|range| range.is_ipv6()).count()),
    ] {
        if count > MAX_RANGES {
            let text = format!("has {count} ranges of {family}; {MAX_RANGES} at most have room, merge some");
            faults.push(Problem::new("nonMasqueradeCIDRs", text));
        }
    }
    found
}

/// Parses a range; bits outside of its mask are cleared.
fn range(item: &Value) -> Option<IpNetwork> {
    let text = item.as_str()?;
    // Without a prefix the parser takes an address for a range of one.
    let range: IpNetwork = text.contains('/').then(|| text.parse().ok()).flatten()?;
    Some(match range {
        IpNetwork::V4(range) => IpNetwork::V4(Ipv4Network::new(range.network(), range.prefix()).ok()?),
        IpNetwork::V6(range) => IpNetwork::V6(Ipv6Network::new(range.network(), range.prefix()).ok()?),
    })
}

fn wrong_range(item: &Value) -> String {
    let text = item.as_str().map_or_else(|| item.to_string(), str::to_owned);
    // A file may have lines of any length.
    let text: String = text.chars().take(64).collect();
    format!("'{text}' is wrong; give a range such as 10.0.0.0/8 or fd00::/8")
}

fn known(range: &str) -> IpNetwork {
    range.parse().expect("a valid range")
}

/// Formats errors, each with its line; of many the first.
fn texts(document: &Document, faults: &[Problem]) -> Vec<String> {
    let lines = document.lines();
    let text = |fault: &Problem| format!("line {}: {fault}", lines.of(&fault.path));
    let mut texts: Vec<String> = faults.iter().take(MAX_REPORTED_ERRORS).map(text).collect();
    if let Some(more) = faults.len().checked_sub(MAX_REPORTED_ERRORS).filter(|more| *more > 0) {
        texts.push(format!("and {more} more"));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(content: &str) -> Vec<String> {
        parse(content.as_bytes()).unwrap().ranges.iter().map(IpNetwork::to_string).collect()
    }

    fn faults(content: &str) -> String {
        parse(content.as_bytes()).unwrap_err().join("; ")
    }

    #[test]
    fn no_file_an_empty_one_and_one_without_a_list_differ() {
        assert_eq!(ranges("").len(), DEFAULTS.len() + 2);
        assert_eq!(ranges("# a comment\n").len(), DEFAULTS.len() + 2);
        assert_eq!(ranges("{}"), ["169.254.0.0/16", "fe80::/10"]);
        assert_eq!(ranges("nonMasqueradeCIDRs:\n"), ["169.254.0.0/16", "fe80::/10"]);
        assert_eq!(ranges("masqLinkLocal: true\nmasqLinkLocalIPv6: true\n"), [] as [&str; 0]);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(&folder.path().join("none")).unwrap(), parse(b"").unwrap());
    }

    #[test]
    fn yaml_and_json_are_read() {
        let yaml = "nonMasqueradeCIDRs:\n- 10.1.2.3/8\n- fd00::1/8\n- 10.0.0.0/8\nmasqLinkLocal: true\nresyncInterval: 60s\n";
        assert_eq!(ranges(yaml), ["10.0.0.0/8", "fd00::/8", "fe80::/10"]);
        let json = r#"{"nonMasqueradeCIDRs": ["0.0.0.0/0", "::/0"], "masqLinkLocalIPv6": true}"#;
        assert_eq!(ranges(json), ["0.0.0.0/0", "169.254.0.0/16", "::/0"]);
        let unknown = parse(b"nonMasqueradeCIDR: [10.0.0.0/8]\n").unwrap();
        assert_eq!(unknown.unknown, ["nonMasqueradeCIDR"]);
    }

    #[test]
    fn faults_name_line_key_value_and_remedy() {
        assert_eq!(
            faults("masqLinkLocal: yes please\nnonMasqueradeCIDRs:\n- 10.0.0.0/8\n- 10.0.0.0\n- 5\n"),
            "line 1: masqLinkLocal: \"yes please\" is wrong; give true or false; \
             line 4: nonMasqueradeCIDRs[1]: '10.0.0.0' is wrong; give a range such as 10.0.0.0/8 or fd00::/8; \
             line 5: nonMasqueradeCIDRs[2]: '5' is wrong; give a range such as 10.0.0.0/8 or fd00::/8"
        );
        assert_eq!(
            faults("nonMasqueradeCIDRs: ten\n"),
            "line 1: nonMasqueradeCIDRs: expected a list of ranges"
        );
        assert!(faults("- 10.0.0.0/8\n").contains("expected an object with nonMasqueradeCIDRs"));
        assert!(faults("a: [\n").contains("line "));
        assert!(faults("a: 1\n---\nb: 2\n").contains("is a second document"));
        let many = format!("nonMasqueradeCIDRs: [{}]\n", "x, ".repeat(100));
        assert!(faults(&many).ends_with("and 92 more"));
        let long = format!("nonMasqueradeCIDRs: [{}]\n", "x".repeat(1000));
        assert!(faults(&long).len() < 200);
    }

    #[test]
    fn huge_files_and_lists_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ranges");
        std::fs::write(&path, vec![b'#'; MAX_FILE as usize + 1]).unwrap();
        assert!(read(&path).unwrap_err().to_string().ends_with("is too long; shorten it to 1048576 bytes"));
        let range = |at: usize| format!("1.{}.{}.0/24, ", at >> 8, at & 0xff);
        let list: String = (0..MAX_RANGES + 1).map(range).collect();
        let content = format!("masqLinkLocal: true\nnonMasqueradeCIDRs: [{list}]\n");
        assert!(faults(&content).contains("16384 at most have room"), "{}", faults(&content));
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        assert!(read(&folder.path().join("folder")).unwrap_err().to_string().contains("no regular file"));
    }
}
