//! Policy: verdicts for packets between an endpoint and a peer, and their authentication ([`auth`]).

mod auth;

use crate::conntrack::Status;
use crate::endpoint::deliver;
use crate::maps::btf::Rows;
use crate::maps::{cilium_policystats, ep_policies};
use crate::monitor::drop::{Drop, capture_len, send};
use crate::packet::family::Family;
use crate::packet::flow::{Flow, UDP};
use crate::packet::skb::Skb;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_get_hash_recalc;
use datapath_abi::event::{self, CaptureHeader, PolicyVerdictNotify, verdict_flag};
use datapath_abi::{
    EndpointConfig, FAMILY_V6, PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue, ep_flag, file,
    policy_flag, policy_match,
};

const FILE: u8 = file::BPF_LXC;

/// The direction of a packet, from the point of view of the endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Egress,
    Ingress,
}

/// The result of a lookup.
#[derive(Clone, Copy)]
struct Verdict {
    denied: Option<Drop>,
    /// The kind of match ([`policy_match`]).
    matched: u8,
    auth_type: u8,
    cookie: u32,
}

/// The entry that decides.
#[derive(Clone, Copy)]
struct Winner {
    row: &'static PolicyEntry,
    /// The identity in its key, 0 for all peers.
    label: u32,
    /// The other entry, of lower precedence.
    other: Option<&'static PolicyEntry>,
}

/// Looks up the verdict of the endpoint's policy for a packet from or to a peer. Replies need no lookup. Reports drops
/// and new connections to monitors. Marks packets that go to a proxy, see [`deliver::is_to_proxy`].
#[inline(always)]
pub(crate) fn check<F: Family>(
    skb: Skb,
    me: &EndpointConfig,
    peer: u32,
    flow: &Flow<F::Address>,
    status: Status,
    way: Way,
) -> Result<(), Drop> {
    let mut verdict = decide::<F>(skb, me, peer, flow, way);
    let mut audited = false;
    let raw = match verdict.denied {
        Some(_) if me.flags & ep_flag::POLICY_AUDIT != 0 => {
            verdict.denied = None;
            audited = true;
            0
        }
        Some(why) => -i32::from(why.reason()),
        None => 0,
    };
    if enabled!(policy_verdict_notify)
        && me.flags & ep_flag::NO_POLICY_VERDICT_NOTIFY == 0
        && (verdict.denied.is_some() || status != Status::Established)
    {
        // As in Cilium, the port of the proxy is the verdict.
        let raw = if raw == 0 && deliver::is_to_proxy(skb) { (skb.mark() >> 16) as i32 } else { raw };
        let way = if way == Way::Egress { verdict_flag::EGRESS } else { verdict_flag::INGRESS };
        let family = if F::NUMBER == FAMILY_V6 { verdict_flag::IPV6 } else { 0 };
        let audited = if audited { verdict_flag::AUDITED } else { 0 };
        let flags = way | family | audited | verdict.matched << verdict_flag::MATCH_SHIFT;
        let what = u64::from(u16::from_be(flow.dport))
            | u64::from(flow.protocol()) << 16
            | u64::from(flags) << 24
            | u64::from(verdict.auth_type) << 32
            | u64::from(me.id as u16) << 48;
        report(skb.raw(), what, peer, raw as u32, verdict.cookie);
    }
    match verdict.denied {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

#[inline(always)]
fn decide<F: Family>(skb: Skb, me: &EndpointConfig, peer: u32, flow: &Flow<F::Address>, way: Way) -> Verdict {
    let mut verdict = Verdict { denied: None, matched: policy_match::NONE, auth_type: 0, cookie: 0 };
    let mut dport = flow.dport;
    if flow.protocol() == F::ICMP {
        if F::passes_policy(flow.icmp()) {
            return verdict;
        }
        if enabled!(icmp_rules) {
            dport = u16::from(flow.icmp()[0]).to_be();
        }
    }
    let egress = u8::from(way == Way::Egress);
    let key = PolicyKey {
        prefixlen: PolicyKey::FULL_BITS,
        sec_label: peer,
        egress,
        protocol: flow.protocol(),
        dport,
    };
    // All packets of an endpoint without a policy map are denied.
    let winner = match ep_policies.get(me.policy_slot) {
        Some(policy) => lookup(&policy, key),
        None => None,
    };
    let Some(winner) = winner else {
        verdict.denied = Some(drop_here!(POLICY_DENIED));
        return verdict;
    };
    let bits = winner.row.lpm_prefix_length();
    if enabled!(policy_accounting) {
        account(skb, me, &key, winner.label, bits);
    }
    verdict.matched = skb.forget(u64::from(policy_match::of(winner.label == 0, bits))) as u8;
    verdict.cookie = winner.row.cookie;
    if winner.row.deny() {
        verdict.denied = Some(drop_here!(POLICY_DENY));
        return verdict;
    }
    verdict.auth_type = auth_type(&winner);
    if verdict.auth_type != 0 {
        let address = if way == Way::Egress { flow.destination } else { flow.source };
        if let Err(why) = auth::check::<F>(skb, me.identity, (peer, address), verdict.auth_type) {
            verdict.denied = Some(why);
            return verdict;
        }
    }
    if winner.row.proxy_port != 0 {
        if flow.is_tcp() || flow.protocol() == UDP {
            // In the mark and not in the result: packets without a proxy, nearly all, carry nothing along.
            deliver::to_proxy(skb, winner.row.proxy_port);
        } else {
            // Rules of iptables lead no other protocol to proxies, and the packet must not bypass its proxy.
            verdict.denied = Some(drop_here!(PROXY_REDIRECTION_NOT_SUPPORTED_FOR_PROTOCOL));
        }
    }
    verdict
}

/// Returns the entry of this peer or of all peers: the higher precedence wins, then the longer prefix, then the peer.
#[inline(always)]
fn lookup(policy: &Rows<PolicyKey, PolicyEntry>, key: PolicyKey) -> Option<Winner> {
    /// The maximum precedence, a deny of the highest priority: no other entry can win.
    const FINAL: u32 = u32::MAX;
    let any = PolicyKey { sec_label: 0, ..key };
    let label = key.sec_label;
    // SAFETY: null or a map entry, which outlives the program's run.
    let (own, all) = unsafe {
        let own = policy.pointer(&key).as_ref();
        if let Some(row) = own
            && row.precedence == FINAL
        {
            return Some(Winner { row, label, other: None });
        }
        (own, policy.pointer(&any).as_ref())
    };
    match (own, all) {
        (Some(own), Some(all))
            if all.precedence > own.precedence
                || all.precedence == own.precedence && all.lpm_prefix_length() > own.lpm_prefix_length() =>
        {
            Some(Winner { row: all, label: 0, other: Some(own) })
        }
        (Some(own), all) => Some(Winner { row: own, label, other: all }),
        (None, Some(all)) => Some(Winner { row: all, label: 0, other: None }),
        (None, None) => None,
    }
}

/// Returns the winner's authentication type; if it is derived, that of the other entry of the same precedence.
#[inline(always)]
fn auth_type(winner: &Winner) -> u8 {
    const TYPE: u8 = !policy_flag::EXPLICIT_AUTH;
    let asked = winner.row.auth_type & TYPE;
    match winner.other {
        Some(other)
            if other.precedence == winner.row.precedence
                && winner.row.auth_type & policy_flag::EXPLICIT_AUTH == 0
                && other.auth_type & TYPE > asked =>
        {
            other.auth_type & TYPE
        }
        _ => asked,
    }
}

/// Counts a packet for the deciding entry.
#[inline(always)]
fn account(skb: Skb, me: &EndpointConfig, key: &PolicyKey, label: u32, bits: u8) {
    const PROTOCOL_BITS: u8 = 8;
    const PORT_BITS: u32 = 16;
    let port_bits = u32::from(bits.saturating_sub(PROTOCOL_BITS));
    // The bits of the port that are wildcards in the entry.
    let rest = if port_bits < PORT_BITS { u16::MAX >> port_bits } else { 0 };
    let row = PolicyStatsKey {
        endpoint_id: me.id as u16,
        pad1: 0,
        prefix_len: bits,
        sec_label: label,
        egress: key.egress,
        protocol: if bits < PROTOCOL_BITS { 0 } else { key.protocol },
        dport: key.dport & !rest.to_be(),
    };
    let bytes = u64::from(skb.len());
    match cilium_policystats.get_mut(&row) {
        Some(stats) => {
            stats.packets += 1;
            stats.bytes += bytes;
        }
        None => cilium_policystats.insert(&row, &PolicyStatsValue { packets: 1, bytes }),
    }
}

#[inline(never)]
fn report(raw: *mut __sk_buff, what: u64, remote_label: u32, verdict: u32, cookie: u32) -> i32 {
    let skb = Skb::from_raw(raw);
    let len = skb.len();
    let cap = capture_len(len);
    let message = PolicyVerdictNotify {
        header: CaptureHeader {
            kind: event::POLICY_VERDICT,
            subtype: 0,
            source: (what >> 48) as u16,
            // SAFETY: `raw` is the context of this run, which is valid until the program returns.
            hash: unsafe { bpf_get_hash_recalc(raw) },
            len_orig: len,
            len_cap: cap as u16,
            version: event::POLICY_VERDICT_VERSION,
            ext_version: 0,
        },
        remote_label,
        verdict: verdict as i32,
        dport: what as u16,
        proto: (what >> 16) as u8,
        flags: (what >> 24) as u8,
        auth_type: (what >> 32) as u8,
        pad1: [0; 3],
        cookie,
        pad2: 0,
    };
    send(skb, cap, &message);
    0
}
