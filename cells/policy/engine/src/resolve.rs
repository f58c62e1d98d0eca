//! Computes the rows of a policy map from a plan and the selections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::engine::{Engine, Rule};
use crate::model::{Action, Direction};
use crate::passes::{Candidate, PeerRules};
use crate::plan::{Act, Conflict, Match, Part, Peer, Plan, Reason, Side, Traffic};
use crate::proxy::Redirect;
use crate::rows::{Key, L4, Row};
use crate::selections::HOST;
use labels::NamedPorts;

/// The policy of an endpoint as rows of its map.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The revision of the policies from which the rows were computed.
    pub revision: u64,
    /// Whether policy is enforced on traffic to the endpoint.
    pub ingress_enforced: bool,
    /// Whether policy is enforced on traffic from the endpoint.
    pub egress_enforced: bool,
    /// The rows.
    pub rows: BTreeMap<Key, Row>,
    plan: Arc<Plan>,
    reasons: Reasons,
}

/// The error of computing an endpoint's rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Its identity is unknown to the engine.
    #[error("identity {0} is not known to the policy engine")]
    UnknownIdentity(u32),
    /// Rules contradict each other.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Its rows do not fit into a policy map.
    #[error("the policy needs {needed} rows, a policy map holds {limit}")]
    TooManyRows {
        /// The number of rows of the policy.
        needed: usize,
        /// The capacity of the policy map.
        limit: usize,
    },
    /// The precedence of rows has too few bits for its priorities and the room that each Pass needs after itself.
    #[error(
        "the ClusterNetworkPolicies of the endpoint use Pass at too many priorities; the endpoint is denied wholly until \
         they use it at fewer"
    )]
    TooManyPriorities,
}

/// A row that was inserted, replaced or, if `None`, removed.
pub type RowChange = (Key, Option<Row>);

/// Rows of one identity, in order.
type PeerRows = Vec<(L4, Row)>;

impl Engine {
    /// Returns the rows of an endpoint with this identity and these named ports, at most `limit` of them. The result
    /// depends only on the arguments and on state with changes reported as a [`Change`](crate::Change). Costs a few
    /// microseconds per rule and some nanoseconds per row; peers that the same selectors select are computed once.
    pub fn resolve(&self, identity: u32, ports: &NamedPorts, limit: usize) -> Result<Resolved, ResolveError> {
        let plan = Arc::new(Plan::new(self, identity, ports)?);
        let mut reasons = Reasons::new(&plan);
        let mut sides = Vec::new();
        let mut needed = 0;
        for direction in [Direction::Ingress, Direction::Egress] {
            let rows = self.side_rows(plan.side(direction), &mut reasons);
            needed += rows.iter().map(|(_, rows)| rows.len()).sum::<usize>();
            sides.push((direction, rows));
        }
        if needed > limit {
            return Err(ResolveError::TooManyRows { needed, limit });
        }
        let key = |direction, identity, l4| Key { direction, identity, l4 };
        let rows = sides.iter().flat_map(|(direction, peers)| {
            peers.iter().flat_map(move |(identity, rows)| {
                rows.iter().map(move |(l4, row)| (key(*direction, *identity, *l4), *row))
            })
        });
        Ok(Resolved {
            revision: self.revision(),
            ingress_enforced: plan.ingress.enforced,
            egress_enforced: plan.egress.enforced,
            rows: rows.collect(),
            plan,
            reasons,
        })
    }

    /// Updates the rows of some peers, after a [`Change`](crate::Change) that has the endpoint's identity in `refresh`
    /// and not in `subjects`. Returns the changed rows, in order. Costs some nanoseconds per peer and selector of the
    /// endpoint's rules. After an error `resolved` is incomplete: call [`resolve`](Self::resolve) again.
    pub fn refresh(
        &self,
        resolved: &mut Resolved,
        peers: &[u32],
        limit: usize,
    ) -> Result<Vec<RowChange>, ResolveError> {
        let plan = resolved.plan.clone();
        let mut changes = Vec::new();
        for direction in [Direction::Ingress, Direction::Egress] {
            let side = plan.side(direction);
            let any = Any::new(side, &mut resolved.reasons);
            for peer in peers.iter().copied().filter(|peer| *peer != 0) {
                let parts = side.peers.iter().filter(|(peers, _)| self.is_selected(*peers, peer));
                let parts = parts.map(|(_, part)| part);
                let names = self.identities.get(peer).map(|identity| &identity.ports);
                let new = peer_rows(parts, names, &any, side, &mut resolved.reasons);
                let new: BTreeMap<Key, Row> =
                    new.into_iter().map(|(l4, row)| (Key { direction, identity: peer, l4 }, row)).collect();
                let reasons = &resolved.reasons;
                let same = |old: Row, new: Row| {
                    let logs = |row: Row| reasons.logs(&plan, row.origin);
                    old.same_effect(new) && (!plan.logs || old.origin == new.origin || logs(old) == logs(new))
                };
                replace(&mut resolved.rows, direction, peer, new, &mut changes, same);
            }
        }
        changes.sort_unstable_by_key(|(key, _)| *key);
        match resolved.rows.len() > limit {
            true => Err(ResolveError::TooManyRows { needed: resolved.rows.len(), limit }),
            false => Ok(changes),
        }
    }

    fn is_selected(&self, peer: Peer, identity: u32) -> bool {
        match peer {
            Peer::Host => identity == HOST,
            Peer::Selected(id) => self.peers.get(id).is_some_and(|selection| selection.has(identity)),
        }
    }

    /// Returns the rows of a direction by identity, in the order of identities; rows for any peer come first, as
    /// identity 0.
    fn side_rows(&self, side: &Side, reasons: &mut Reasons) -> Vec<(u32, Arc<PeerRows>)> {
        let any = Any::new(side, reasons);
        // Pairs of an identity and the index of a part that applies to it. Identities with the same parts form a class
        // with the same rows; named ports belong to the class key only if a part of the class uses them.
        let mut counts: Vec<(u32, u32)> = Vec::new();
        for (index, (peer, _)) in side.peers.iter().enumerate() {
            let selected = match peer {
                Peer::Host => &[HOST][..],
                Peer::Selected(id) => self.peers.of(*id),
            };
            counts.extend(selected.iter().map(|identity| (*identity, index as u32)));
        }
        counts.sort_unstable();
        let part = |index: &u32| &side.peers[*index as usize].1;
        let by_name = |index: &u32| matches!(part(index).act.traffic, Traffic::Named(..));
        let mut made: HashMap<(Vec<u32>, Option<&NamedPorts>), Arc<PeerRows>> = HashMap::new();
        let mut rows = Vec::new();
        for group in counts.chunk_by(|a, b| a.0 == b.0) {
            let identity = group[0].0;
            let class: Vec<u32> = group.iter().map(|(_, index)| *index).collect();
            let named = class.iter().any(by_name);
            let names = named.then(|| self.identities.get(identity).map(|known| &known.ports)).flatten();
            let made = made.entry((class, names)).or_insert_with_key(|(class, names)| {
                Arc::new(peer_rows(class.iter().map(part), *names, &any, side, reasons))
            });
            rows.push((identity, made.clone()));
        }
        rows.insert(0, (0, Arc::new(any.rows)));
        rows
    }
}

/// The rules and rows for any peer.
#[derive(Default)]
struct Any {
    rules: PeerRules,
    rows: PeerRows,
}

impl Any {
    fn new(side: &Side, reasons: &mut Reasons) -> Any {
        let rules = peer_rules(side.any.iter(), None);
        let candidates = rules.clone().passed(&PeerRules::default(), &side.levels);
        Any { rows: rows(candidates, &PeerRows::new(), side, reasons), rules }
    }
}

/// Returns the rows of one peer from the parts of a plan that apply to it.
fn peer_rows<'a>(
    parts: impl Iterator<Item = &'a Part>,
    names: Option<&NamedPorts>,
    any: &Any,
    side: &Side,
    reasons: &mut Reasons,
) -> PeerRows {
    rows(peer_rules(parts, names).passed(&any.rules, &side.levels), &any.rows, side, reasons)
}

/// Returns the rules of a peer with these named ports.
fn peer_rules<'a>(parts: impl Iterator<Item = &'a Part>, names: Option<&NamedPorts>) -> PeerRules {
    let mut rules = PeerRules::default();
    for part in parts {
        let (act, origin) = (&*part.act, part.origin);
        let Act { tier, number, redirect, auth, .. } = *act;
        let mut add = |l4: L4| {
            if act.action == Action::Pass {
                return rules.add_pass(l4, tier, number);
            }
            // A redirect that cannot be made allows nothing.
            let Some(proxy_port) = act.proxy.of_port(l4.port) else { return };
            let deny = act.action == Action::Deny;
            rules.candidates.push(Candidate { l4, tier, number, deny, redirect, proxy_port, auth, origin });
        };
        match &act.traffic {
            Traffic::Blocks(blocks) => blocks.iter().copied().for_each(add),
            Traffic::Named(name, protocol) => {
                if let Some(port) = names.and_then(|names| names.port(name, *protocol)) {
                    add(L4::port(*protocol, port));
                }
            }
        }
    }
    rules
}

/// Returns the rows of candidates; `any` are the rows for any peer. Rows that cannot decide a lookup are removed.
fn rows(candidates: Vec<Candidate>, any: &PeerRows, side: &Side, reasons: &mut Reasons) -> PeerRows {
    let mut candidates: Vec<(L4, Row)> =
        candidates.into_iter().map(|found| (found.l4, found.row())).collect();
    candidates.sort_unstable_by_key(|(l4, row)| (*l4, Reverse(row.precedence), row.proxy_port, row.origin));
    let same_key = candidates.chunk_by(|a, b| a.0 == b.0);
    let mut rows: PeerRows =
        same_key.map(|same| (same[0].0, merged(same, side.authenticates, reasons))).collect();
    // The kernel's lookup takes the longest match of an identity, regardless of its precedence. A longer row must
    // therefore not hide a shorter one of higher precedence: it is removed. If all rows are allows of one precedence,
    // none can hide another.
    let first = rows.first().map(|(_, row)| row.precedence);
    if rows.iter().chain(any).any(|(_, row)| row.deny || Some(row.precedence) != first) {
        rows = rows.iter().filter_map(|row| decisive(row, &rows, any, side.authenticates)).collect();
    }
    if side.authenticates {
        inherit_auth(&mut rows);
    }
    rows
}

/// Returns the row of candidates with the same key, which are sorted by precedence: that of the first one. An allow has
/// the authentication of the other allows, too: of all of them if `authenticates`, else of those of its priority.
fn merged(same: &[(L4, Row)], authenticates: bool, reasons: &mut Reasons) -> Row {
    let first = same[0].1;
    let strongest = same.iter().map(|(_, row)| row).take_while(|row| row.precedence == first.precedence);
    let mut origins: Vec<u32> = strongest.map(|row| row.origin).collect();
    origins.dedup();
    let origin = if origins.len() == 1 { origins[0] } else { reasons.merged(origins) };
    let of_priority = |row: &&Row| authenticates || row.precedence >> 8 == first.precedence >> 8;
    let auth = same.iter().map(|(_, row)| row).filter(of_priority).map(|row| row.auth).max().unwrap_or(0);
    Row { auth: if first.deny { 0 } else { auth }, origin, ..first }
}

/// Sets the authentication of allows without one of their own: that of the longest broader allow that has one and is not
/// of a lower priority.
fn inherit_auth(rows: &mut PeerRows) {
    let derived: Vec<u8> = rows
        .iter()
        .map(|(l4, row)| {
            if row.deny || row.has_explicit_auth() {
                return row.auth;
            }
            let gives = |other: &Row| {
                !other.deny && other.has_explicit_auth() && other.precedence >> 8 >= row.precedence >> 8
            };
            let broader = covering(*l4, rows).filter(gives).last();
            broader.map_or(0, |row| row.auth & !Row::EXPLICIT_AUTH)
        })
        .collect();
    rows.iter_mut().zip(derived).for_each(|((_, row), auth)| row.auth = auth);
}

/// Returns a row as it has to be written; `None` if it is redundant or would hide a row of higher precedence: a row of
/// the same peer or of any peer covers its traffic and has a higher precedence, or is a deny of the same precedence.
///
/// If `authenticates`, an authentication that a rule sets holds even where an allow takes precedence over the rule: the
/// row stays, with proxy port and precedence of that allow. Allows for any peer then remove no allow of a peer.
fn decisive((l4, row): &(L4, Row), own: &PeerRows, any: &PeerRows, authenticates: bool) -> Option<(L4, Row)> {
    let precedes = |other: &Row, row: &Row| {
        other.precedence > row.precedence || other.deny && other.precedence == row.precedence
    };
    let first = covering(*l4, own).filter(|other| precedes(other, row)).max_by_key(|other| other.precedence);
    let row = match first {
        None => *row,
        Some(first) if authenticates && row.has_explicit_auth() && !first.deny => {
            Row { precedence: first.precedence, proxy_port: first.proxy_port, ..*row }
        }
        Some(_) => return None,
    };
    let removes = |other: &Row| precedes(other, &row) && (!authenticates || row.deny || other.deny);
    let hidden = covering(*l4, any).chain(row_of(*l4, any)).any(|other| removes(&other));
    (!hidden).then_some((*l4, row))
}

/// Iterates over the rows with broader keys than `l4`, the broadest first.
fn covering(l4: L4, rows: &PeerRows) -> impl Iterator<Item = Row> + '_ {
    let lengths = [0].into_iter().chain(8..l4.bits).filter(move |bits| *bits < l4.bits);
    lengths.filter_map(move |bits| row_of(l4.truncated(bits), rows))
}

fn row_of(l4: L4, rows: &PeerRows) -> Option<Row> {
    rows.binary_search_by_key(&l4, |(l4, _)| *l4).ok().map(|at| rows[at].1)
}

/// Replaces the rows of a peer, and appends the differences to `changes`.
fn replace(
    rows: &mut BTreeMap<Key, Row>,
    direction: Direction,
    identity: u32,
    new: BTreeMap<Key, Row>,
    changes: &mut Vec<RowChange>,
    same: impl Fn(Row, Row) -> bool,
) {
    let first = Key { direction, identity, l4: L4::ALL };
    let last = Key { direction, identity, l4: L4 { protocol: u8::MAX, port: u16::MAX, bits: u8::MAX } };
    let gone: Vec<Key> =
        rows.range(first..=last).map(|(key, _)| *key).filter(|key| !new.contains_key(key)).collect();
    for key in gone {
        rows.remove(&key);
        changes.push((key, None));
    }
    for (key, row) in new {
        let old = rows.insert(key, row);
        if !old.is_some_and(|old| same(old, row)) {
            changes.push((key, Some(row)));
        }
    }
}

/// The mapping from a row's origin to its reason. Origins below `parts` are indexes of the plan's reasons; further
/// origins are lists of these, for rows that several parts produce.
#[derive(Debug, Clone)]
struct Reasons {
    parts: u32,
    lists: Vec<Vec<u32>>,
    known: HashMap<Vec<u32>, u32>,
}

impl Reasons {
    fn new(plan: &Plan) -> Reasons {
        Reasons { parts: plan.reasons.len() as u32, lists: Vec::new(), known: HashMap::new() }
    }

    /// Returns the origin of a row that several parts produce, interned.
    fn merged(&mut self, mut parts: Vec<u32>) -> u32 {
        parts.sort_unstable();
        parts.dedup();
        if let [one] = parts[..] {
            return one;
        }
        if let Some(known) = self.known.get(&parts) {
            return *known;
        }
        let origin = self.parts + self.lists.len() as u32;
        self.lists.push(parts.clone());
        self.known.insert(parts, origin);
        origin
    }

    /// Returns the texts for the log of verdicts of the rules behind an origin, each once, in the order of the rules.
    fn logs(&self, plan: &Plan, origin: u32) -> Vec<Arc<str>> {
        let parts = match origin.checked_sub(self.parts) {
            Some(list) => &self.lists[list as usize][..],
            None => &[origin],
        };
        let mut texts: Vec<Arc<str>> = Vec::new();
        for part in parts {
            // As in `reason`: a row that is not of rules alone has none of their texts.
            if plan.added(*part).is_some() {
                return Vec::new();
            }
            for rule in plan.rules_of(*part) {
                if !rule.log.is_empty() && !texts.contains(&rule.log) {
                    texts.push(rule.log.clone());
                }
            }
        }
        texts
    }
}

impl Resolved {
    /// Returns the reason of a row of this result.
    pub fn reason(&self, row: Row) -> Reason {
        let list = row.origin.checked_sub(self.reasons.parts).map(|at| &self.reasons.lists[at as usize]);
        let Some(parts) = list else { return self.plan.reason(row.origin) };
        let mut matches: Vec<Match> = Vec::new();
        for part in parts {
            match self.plan.added(*part) {
                Some(reason) => return reason.clone(),
                None => matches.extend(self.plan.matches(*part)),
            }
        }
        Reason::Rules(matches)
    }

    /// Whether a rule has a text for the log of verdicts; without one, [`logs`](Self::logs) is empty for all rows.
    pub fn has_logs(&self) -> bool {
        self.plan.logs
    }

    /// Returns the texts for the log of verdicts of the rules behind a row of this result, each once, in the order of the
    /// rules. A row that changes only in them is a change of [`Engine::refresh`], too.
    pub fn logs(&self, row: Row) -> Vec<Arc<str>> {
        if self.plan.logs { self.reasons.logs(&self.plan, row.origin) } else { Vec::new() }
    }

    /// Returns the rules that select the endpoint and have rows for peers that exist; each once.
    pub fn selecting_rules(&self) -> Vec<&Arc<Rule>> {
        let mut rules: Vec<&Arc<Rule>> = self.plan.rules.iter().flatten().collect();
        rules.sort_unstable_by_key(|rule| (&rule.resource, &rule.path));
        rules.dedup_by_key(|rule| (&rule.resource, &rule.path));
        rules
    }

    /// Returns the redirects that cannot be made, since their proxy has no port: their traffic is not allowed.
    pub fn missing_redirects(&self) -> &BTreeSet<Redirect> {
        &self.plan.missing
    }

    /// Whether policy is enforced in a direction.
    pub fn enforced(&self, direction: Direction) -> bool {
        self.plan.side(direction).enforced
    }

    /// Returns the number of rules that select the endpoint in a direction.
    pub fn rules(&self, direction: Direction) -> usize {
        self.plan.side(direction).rules
    }
}
