//! Notifications of nf_tables about chains and rules that another process has changed.

use netlink::{Attributes, Message, Protocol, Received, Subscription, nfnetlink};

use crate::backend::{NF_TABLES, NFGENMSG_LEN};
use crate::rules::is_related;

const NEW_RULE: u16 = nfnetlink::kind(NF_TABLES, libc::NFT_MSG_NEWRULE as u8);
const DELETE_RULE: u16 = nfnetlink::kind(NF_TABLES, libc::NFT_MSG_DELRULE as u8);
const DELETE_CHAIN: u16 = nfnetlink::kind(NF_TABLES, libc::NFT_MSG_DELCHAIN as u8);
const DELETE_TABLE: u16 = nfnetlink::kind(NF_TABLES, libc::NFT_MSG_DELTABLE as u8);

/// The attributes with the chain's name, in messages about rules and in those about chains.
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_CHAIN_NAME: u16 = 3;

/// A subscription to changes of nf_tables in the network namespace of its creation.
pub(crate) struct Notifications(Option<Subscription>);

impl Notifications {
    /// Subscribes. If the kernel reports nothing, changes are found by the next comparison.
    pub(crate) fn open() -> Notifications {
        let groups = [libc::NFNLGRP_NFTABLES as u32];
        let subscription = Subscription::open(Protocol::Netfilter, &groups, None);
        Notifications(
            subscription
                .map_err(|error| tracing::info!(%error, "The kernel does not report changes of nf_tables"))
                .ok(),
        )
    }

    /// Waits until the agent's chains, or rules beside those that lead to them, may have been changed. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        while let Some(subscription) = &mut self.0 {
            match subscription.receive().await {
                // An unparsable message may be about the agent's rules: an unneeded comparison is harmless.
                Ok(Received::Packet)
                    if !subscription.messages().any(|m| m.as_ref().map_or(true, concerns)) => {}
                Ok(Received::Packet | Received::Overflow) => return,
                Err(_) => self.0 = None,
            }
        }
        std::future::pending().await
    }
}

/// Whether a message is about the agent's chains, or about a rule of a chain that leads to one.
fn concerns(message: &Message<'_>) -> bool {
    let (Some(family), Some(attributes)) = (message.body.first(), message.body.get(NFGENMSG_LEN..)) else {
        return true;
    };
    if ![libc::NFPROTO_IPV4, libc::NFPROTO_IPV6].contains(&i32::from(*family)) {
        return false;
    }
    let is_related_by = |kind| {
        let name = Attributes::new(attributes).first(kind).ok().flatten();
        name.is_some_and(|name| is_related(&String::from_utf8_lossy(name.text())))
    };
    match message.header.message_type {
        DELETE_TABLE => true,
        DELETE_CHAIN => is_related_by(NFTA_CHAIN_NAME),
        NEW_RULE | DELETE_RULE => is_related_by(NFTA_RULE_CHAIN),
        _ => false,
    }
}
