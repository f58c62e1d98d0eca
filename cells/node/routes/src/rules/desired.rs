//! The row of table `desired-rules`.

use std::net::IpAddr;
use std::sync::Arc;

use devices::rtnetlink::Rule;
use devices::{MappedIp, table_name};
use ipnetwork::IpNetwork;
use reconciler::Status;
use serde::{Serialize, Serializer};
use statedb::{IndexKey, KeyBuf, KeyParseError, Prefix, PrefixOf, Query, TableDisplay, TableSpec};

/// A rule that an owner desires. Of several owners with the same rule each has a row, and the kernel has one rule.
#[derive(Clone, Debug)]
pub struct DesiredRule {
    /// Name of its owner.
    pub owner: Arc<str>,
    /// The rule.
    pub rule: Rule,
    /// The priority of a rule with the same conditions and table that this one replaces: deleted once this one is in the
    /// kernel, and there again when this one is deleted.
    pub replaces: Option<u32>,
    /// Its state of reconciliation.
    pub status: Status,
}

impl DesiredRule {
    /// Returns the row of a rule; the handle sets its owner.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self { owner: Arc::from(""), rule, replaces: None, status: Status::pending() }
    }

    /// Replaces the same rule at another priority.
    #[must_use]
    pub fn replaces(self, priority: u32) -> Self {
        Self { replaces: Some(priority), ..self }
    }

    /// Returns the rule that this one replaces.
    pub(crate) fn replaced(&self) -> Option<Rule> {
        self.replaces.map(|priority| Rule { priority, ..self.rule })
    }

    /// Selects the rows of an owner.
    #[must_use]
    pub fn by_owner(owner: &str) -> Prefix<Self> {
        Prefix::primary(owner)
    }

    /// Selects the row of an owner and a rule.
    #[must_use]
    pub fn by_id(owner: &str, rule: Rule) -> Query<Self> {
        Query::primary(RuleId { owner, rule })
    }
}

/// The primary key: `owner:family:priority:table:mark/mask[,from RANGE][,to RANGE]`.
#[derive(Clone, Copy, Debug)]
pub struct RuleId<'a> {
    owner: &'a str,
    rule: Rule,
}

const FROM: &str = ",from ";
const TO: &str = ",to ";

impl IndexKey for RuleId<'_> {
    fn encode(&self, key: &mut KeyBuf) {
        let rule = &self.rule;
        self.owner.encode(key);
        u32::from(rule.ipv6).encode(key);
        [rule.priority, rule.table, rule.mark, rule.mask].iter().for_each(|number| number.encode(key));
        for range in [rule.from, rule.to] {
            // One more than the length: 0 is the absence of a range.
            let (ip, length) =
                range.map_or((IpAddr::from([0u16; 8]), 0), |range| (range.ip(), range.prefix() + 1));
            length.encode(key);
            MappedIp::from(ip).encode(key);
        }
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let parse = || -> Option<RuleId<'_>> {
            let (text, to) = range(text, TO)?;
            let (text, from) = range(text, FROM)?;
            let mut parts = text.rsplitn(5, ':');
            let (mark, mask) = parts.next()?.split_once('/')?;
            let (table, priority, family) = (parts.next()?, parts.next()?, parts.next()?);
            let rule = Rule {
                ipv6: ["ipv4", "ipv6"].iter().position(|name| *name == family)? == 1,
                priority: priority.parse().ok()?,
                mark: hexadecimal(mark)?,
                mask: hexadecimal(mask)?,
                from,
                to,
                table: crate::fib::table_number(table)?,
            };
            Some(RuleId { owner: parts.next()?, rule })
        };
        let wrong = || {
            KeyParseError::new(
                text,
                "a rule: owner:ipv4|ipv6:priority:table:mark/mask[,from RANGE][,to RANGE]",
            )
        };
        parse().ok_or_else(wrong)?.encode(key);
        Ok(())
    }

    /// Parses an owner, or a whole key.
    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        if text.contains(':') { Self::encode_text(text, key) } else { str::encode_text_prefix(text, key) }
    }
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// Splits a range off the end of a text; `None` if it is no range.
fn range<'t>(text: &'t str, name: &str) -> Option<(&'t str, Option<IpNetwork>)> {
    match text.split_once(name) {
        Some((rest, range)) => Some((rest, Some(range.parse().ok()?))),
        None => Some((text, None)),
    }
}

impl<'a> PrefixOf<RuleId<'a>> for str {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.encode(key);
    }
}

impl TableSpec for DesiredRule {
    const NAME: &'static str = "desired-rules";
    const PRIMARY: &'static str = "id";
    type Key<'a> = RuleId<'a>;

    fn key(&self) -> RuleId<'_> {
        RuleId { owner: &self.owner, rule: self.rule }
    }
}

impl TableDisplay for DesiredRule {
    fn columns() -> &'static [&'static str] {
        &["Owner", "Family", "Priority", "Mark", "From", "To", "Table", "Replaces", "Status"]
    }

    fn row(&self) -> Vec<String> {
        let rule = &self.rule;
        let range =
            |range: Option<IpNetwork>| range.map_or_else(|| "all".to_owned(), |range| range.to_string());
        vec![
            self.owner.to_string(),
            if rule.ipv6 { "ipv6" } else { "ipv4" }.to_owned(),
            rule.priority.to_string(),
            if rule.mask == 0 { "any".to_owned() } else { format!("{:#x}/{:#x}", rule.mark, rule.mask) },
            range(rule.from),
            range(rule.to),
            table_name(rule.table),
            self.replaces.map_or_else(|| "none".to_owned(), |priority| priority.to_string()),
            self.status.to_string(),
        ]
    }
}

impl Serialize for DesiredRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            owner: &'a str,
            #[serde(rename = "IPv6")]
            ipv6: bool,
            priority: u32,
            mark: u32,
            mask: u32,
            from: Option<IpNetwork>,
            to: Option<IpNetwork>,
            table: u32,
            replaces: Option<u32>,
            status: &'a Status,
        }
        let Rule { ipv6, priority, mark, mask, from, to, table } = self.rule;
        let (owner, replaces, status) = (&*self.owner, self.replaces, &self.status);
        Wire { owner, ipv6, priority, mark, mask, from, to, table, replaces, status }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_text() {
        let marked = Rule { priority: 9, mark: 0x200, mask: 0xf00, table: 2004, ..Rule::default() };
        let ranges = Rule {
            ipv6: true,
            priority: 20,
            from: "fd00::/64".parse().ok(),
            to: "fd01::/16".parse().ok(),
            table: devices::TABLE_LOCAL,
            ..Rule::default()
        };
        for (text, owner, rule) in [
            ("proxy:ipv4:9:2004:0x200/0xf00", "proxy", marked),
            ("a:b:ipv6:20:local:0x0/0x0,from fd00::/64,to fd01::/16", "a:b", ranges),
        ] {
            let (mut parsed, mut direct) = (KeyBuf::new(), KeyBuf::new());
            RuleId::encode_text(text, &mut parsed).unwrap();
            RuleId { owner, rule }.encode(&mut direct);
            assert_eq!(parsed, direct, "{text}");
        }
        for wrong in ["proxy", "proxy:ipv5:9:2004:0/0", "proxy:ipv4:9:x:0/0", "p:ipv4:9:1:0/0,to x"] {
            assert!(RuleId::encode_text(wrong, &mut KeyBuf::new()).is_err(), "{wrong}");
        }
    }
}
