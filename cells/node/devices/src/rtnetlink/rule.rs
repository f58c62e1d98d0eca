//! Rules of policy routing.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::{Netlink, NetlinkError};

/// A rule by which packets are looked up in a table: all, or those with a mark or an address. `Display` has the form of
/// `ip rule`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Whether it is a rule of IPv6.
    pub ipv6: bool,
    /// Its priority: the kernel evaluates smaller ones first.
    pub priority: u32,
    /// The mark that packets must have in the bits of `mask`.
    pub mark: u32,
    /// Bits of the mark that are compared; 0 for all packets.
    pub mask: u32,
    /// The range of the packets' source; `None` for all.
    pub from: Option<IpNetwork>,
    /// The range of the packets' destination; `None` for all.
    pub to: Option<IpNetwork>,
    /// The table.
    pub table: u32,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rule {}: from ", if self.ipv6 { "ip -6" } else { "ip" }, self.priority)?;
        match self.from {
            Some(from) => from.fmt(f)?,
            None => f.write_str("all")?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        if self.mask != 0 {
            write!(f, " fwmark {:#x}/{:#x}", self.mark, self.mask)?;
        }
        match self.table {
            crate::TABLE_LOCAL => f.write_str(" lookup local"),
            crate::TABLE_MAIN => f.write_str(" lookup main"),
            table => write!(f, " lookup {table}"),
        }
    }
}

impl Rule {
    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = if self.ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        message.header.action = RuleAction::ToTable;
        message.attributes = vec![RuleAttribute::Priority(self.priority), RuleAttribute::Table(self.table)];
        if self.mask != 0 {
            message.attributes.extend([RuleAttribute::FwMark(self.mark), RuleAttribute::FwMask(self.mask)]);
        }
        if let Some(from) = self.from {
            message.header.src_len = from.prefix();
            message.attributes.push(RuleAttribute::Source(from.network()));
        }
        if let Some(to) = self.to {
            message.header.dst_len = to.prefix();
            message.attributes.push(RuleAttribute::Destination(to.network()));
        }
        message
    }

    /// Converts a rule; `None` for those with other conditions or actions, and of other families.
    fn parse(message: &RuleMessage) -> Option<Rule> {
        let header = &message.header;
        let ipv6 = match header.family {
            AddressFamily::Inet => false,
            AddressFamily::Inet6 => true,
            _ => return None,
        };
        if header.action != RuleAction::ToTable || header.tos > 0 {
            return None;
        }
        let range = |ip: IpAddr, length: u8| IpNetwork::new(ip, length).ok();
        let mut rule = Rule { ipv6, table: header.table.into(), ..Rule::default() };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::FwMark(mark) => rule.mark = *mark,
                RuleAttribute::FwMask(mask) => rule.mask = *mask,
                RuleAttribute::Table(table) => rule.table = *table,
                RuleAttribute::Source(ip) => rule.from = Some(range(*ip, header.src_len)?),
                RuleAttribute::Destination(ip) => rule.to = Some(range(*ip, header.dst_len)?),
                // No effect on the lookup: the rule's origin, and the default of no suppressed prefix length.
                RuleAttribute::Protocol(_) | RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
                _ => return None,
            }
        }
        Some(rule)
    }
}

impl Netlink {
    /// Lists the rules of both families that have no conditions other than the mark and ranges of addresses.
    pub fn rules(&mut self) -> Result<Vec<Rule>, NetlinkError> {
        let all = Message::GetRule(RuleMessage::default());
        self.dump("list rules", &all, |message| match message {
            Message::NewRule(rule) => Rule::parse(&rule),
            _ => None,
        })
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// [`NetlinkError::is_exists`] if there is the same rule.
    pub fn add_rule(&mut self, rule: &Rule) -> Result<(), NetlinkError> {
        let describe = || format!("add {rule}");
        self.request(describe, Message::NewRule(rule.message()), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes a rule.
    pub fn delete_rule(&mut self, rule: &Rule) -> Result<(), NetlinkError> {
        let describe = || format!("delete {rule}");
        self.request(describe, Message::DelRule(rule.message()), 0)
    }
}
