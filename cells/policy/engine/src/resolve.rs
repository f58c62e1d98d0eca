//! Computes the rows of a policy map from a plan and the selections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::engine::Engine;
use crate::model::{Action, Direction};
use crate::passes::{Candidate, PeerRules};
use crate::plan::{Match, Part, Peer, Plan, Reason, Side, Traffic};
use crate::priority::{Levels, precedence};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Its identity is unknown to the engine.
    #[error("identity {0} is not known to the policy engine")]
    UnknownIdentity(u32),
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
                let parts = side.peers.iter().filter(|(peers, _)| self.is_selected(**peers, peer));
                let parts = parts.flat_map(|(_, parts)| parts);
                let names = self.identities.get(peer).map(|identity| &identity.ports);
                let new = peer_rows(parts, names, &any, &side.levels, &mut resolved.reasons);
                let new: BTreeMap<Key, Row> =
                    new.into_iter().map(|(l4, row)| (Key { direction, identity: peer, l4 }, row)).collect();
                replace(&mut resolved.rows, direction, peer, new, &mut changes);
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
        // Pairs of an identity and the index of a selector that selects it. Identities with the same set of selectors
        // form a class with the same rows; named ports belong to the class key only if a part of the class uses them.
        let mut counts: Vec<(u32, u32)> = Vec::new();
        for (index, peer) in side.peers.keys().enumerate() {
            let selected = match peer {
                Peer::Host => &[HOST][..],
                Peer::Selected(id) => self.peers.of(*id),
            };
            counts.extend(selected.iter().map(|identity| (*identity, index as u32)));
        }
        counts.sort_unstable();
        let parts: Vec<&Vec<Part>> = side.peers.values().collect();
        let by_name = |part: &Part| matches!(part.traffic, Traffic::Named(..));
        let names_count: Vec<bool> = parts.iter().map(|parts| parts.iter().any(by_name)).collect();
        let mut made: HashMap<(Vec<u32>, Option<&NamedPorts>), Arc<PeerRows>> = HashMap::new();
        let mut rows = Vec::new();
        for group in counts.chunk_by(|a, b| a.0 == b.0) {
            let identity = group[0].0;
            let class: Vec<u32> = group.iter().map(|(_, index)| *index).collect();
            let named = class.iter().any(|index| names_count[*index as usize]);
            let names = named.then(|| self.identities.get(identity).map(|known| &known.ports)).flatten();
            let made = made.entry((class, names)).or_insert_with_key(|(class, names)| {
                let parts = class.iter().flat_map(|index| parts[*index as usize]);
                Arc::new(peer_rows(parts, *names, &any, &side.levels, reasons))
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
        Any { rows: rows(candidates, &PeerRows::new(), reasons), rules }
    }
}

/// Returns the rows of one peer from the parts of a plan that apply to it.
fn peer_rows<'a>(
    parts: impl Iterator<Item = &'a Part>,
    names: Option<&NamedPorts>,
    any: &Any,
    levels: &Levels,
    reasons: &mut Reasons,
) -> PeerRows {
    rows(peer_rules(parts, names).passed(&any.rules, levels), &any.rows, reasons)
}

/// Returns the rules of a peer with these named ports.
fn peer_rules<'a>(parts: impl Iterator<Item = &'a Part>, names: Option<&NamedPorts>) -> PeerRules {
    let mut rules = PeerRules::default();
    for part in parts {
        let Part { tier, number, origin, .. } = *part;
        let mut add = |l4: L4| match part.action {
            Action::Pass => rules.add_pass(l4, tier, number),
            action => {
                rules.candidates.push(Candidate { l4, tier, number, deny: action == Action::Deny, origin });
            }
        };
        match &part.traffic {
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
fn rows(candidates: Vec<Candidate>, any: &PeerRows, reasons: &mut Reasons) -> PeerRows {
    let sortable = |candidate: Candidate| {
        let precedence = precedence(candidate.number, candidate.deny);
        (candidate.l4, Reverse(precedence), candidate.origin, candidate.deny)
    };
    let mut candidates: Vec<(L4, Reverse<u32>, u32, bool)> = candidates.into_iter().map(sortable).collect();
    candidates.sort_unstable();
    candidates.dedup();
    let same_key = candidates.chunk_by(|a, b| a.0 == b.0);
    let merged = same_key.map(|same| {
        let (l4, Reverse(precedence), origin, deny) = same[0];
        let strongest = same.iter().take_while(|other| other.1 == Reverse(precedence));
        let origin = match same.len() {
            1 => origin,
            _ => reasons.merged(strongest.map(|other| other.2).collect()),
        };
        (l4, Row { deny, precedence, origin })
    });
    let mut rows: PeerRows = merged.collect();
    // The kernel's lookup takes the longest match of an identity, regardless of its precedence. A longer row must
    // therefore not hide a shorter one of higher precedence: it is removed. If all rows are allows of one precedence,
    // none can hide another.
    let first = rows.first().map(|(_, row)| row.precedence);
    if rows.iter().chain(any).any(|(_, row)| row.deny || Some(row.precedence) != first) {
        let covered: Vec<bool> =
            rows.iter().map(|row| is_covered(row, &rows, true) || is_covered(row, any, false)).collect();
        let mut covered = covered.into_iter();
        rows.retain(|_| !covered.next().unwrap_or(false));
    }
    rows
}

/// Whether a row is redundant or would hide a row of higher precedence: one of `rows` covers its traffic and has a
/// higher precedence, or is a deny of the same precedence. With `same_identity`, `rows` contain the row itself, which
/// does not count.
fn is_covered((l4, row): &(L4, Row), rows: &PeerRows, same_identity: bool) -> bool {
    let lengths = [0].into_iter().chain(8..=l4.bits);
    lengths.map(|bits| l4.truncated(bits)).any(|key| {
        let Ok(at) = rows.binary_search_by_key(&key, |(l4, _)| *l4) else { return false };
        let other = rows[at].1;
        let itself = same_identity && key == *l4;
        other.precedence > row.precedence || other.deny && other.precedence == row.precedence && !itself
    })
}

/// Replaces the rows of a peer, and appends the differences to `changes`.
fn replace(
    rows: &mut BTreeMap<Key, Row>,
    direction: Direction,
    identity: u32,
    new: BTreeMap<Key, Row>,
    changes: &mut Vec<RowChange>,
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
        if !old.is_some_and(|old| old.same_effect(row)) {
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
}

impl Resolved {
    /// Returns the reason of a row of this result.
    pub fn reason(&self, row: Row) -> Reason {
        let list = row.origin.checked_sub(self.reasons.parts).map(|at| &self.reasons.lists[at as usize]);
        let Some(parts) = list else { return self.plan.reasons[row.origin as usize].clone() };
        let mut matches: Vec<Match> = Vec::new();
        for part in parts {
            match &self.plan.reasons[*part as usize] {
                Reason::Rules(more) => matches.extend(more.iter().cloned()),
                other => return other.clone(),
            }
        }
        Reason::Rules(matches)
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
