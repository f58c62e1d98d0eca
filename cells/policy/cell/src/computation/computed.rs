//! The rows of an audience as they are computed, and the reason why they are not those of its rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use datapath_abi::{PolicyEntry, policy_flag};
use hive::health::summarize;
use policy_engine::{
    Direction, Engine, Filters, Key, NamedPorts, Redirect, Redirects, ResolveError, Resolved, Row,
};

use crate::computation::log_cookies::LogCookies;
use crate::model::endpoint::{RealizationState, RowCounts, Subject};
use crate::model::rows::{RowKey, Rows};

/// The properties of an endpoint from which its rows are computed: endpoints with equal ones share their rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Audience {
    pub(super) identity: u32,
    pub(super) ports: NamedPorts,
}

/// The rows of all audiences with the same basis, computed once.
#[derive(Debug)]
pub(crate) struct Computed {
    /// `None` if there are too many rows. Shared with the rows of endpoints.
    pub(crate) resolved: Option<Arc<Resolved>>,
    /// The desired map entries; if there are too many, those of [`Limit::rows_when_full`].
    pub(crate) rows: Arc<Rows>,
    pub(super) enforced: [bool; 2],
    pub(super) counts: [RowCounts; 2],
    /// The rules that the rows come from.
    pub(super) filters: Arc<Filters>,
    pub(super) fault: Option<Fault>,
    /// The number of redirects that cannot be made.
    pub(super) missing_redirects: usize,
    /// The redirects of the rules.
    pub(super) redirects: Redirects,
}

/// The reason why the rules of an audience are not in force as written.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// Their rows do not fit into a map.
    Full(Arc<str>),
    /// They contradict each other: the previous rows stay.
    Conflict(Arc<str>),
    /// They contradict each other, and there are no previous rows: the map stays as it is, empty if it is new.
    ConflictFromStart(Arc<str>),
    /// Their traffic is denied as far as it needs a proxy that has no port.
    NoProxy(Arc<str>),
}

impl Fault {
    pub(super) fn state(&self) -> RealizationState {
        match self {
            Fault::Full(_) => RealizationState::Full,
            Fault::Conflict(_) | Fault::ConflictFromStart(_) => RealizationState::Conflict,
            Fault::NoProxy(_) => RealizationState::Realized,
        }
    }

    /// Whether the rules themselves are at fault, not the map or the proxies.
    pub(super) fn is_of_rules(&self) -> bool {
        matches!(self, Fault::Conflict(_) | Fault::ConflictFromStart(_))
    }

    pub(super) fn text(&self) -> &Arc<str> {
        match self {
            Fault::Full(text)
            | Fault::Conflict(text)
            | Fault::ConflictFromStart(text)
            | Fault::NoProxy(text) => text,
        }
    }
}

/// The capacity of policy maps.
pub(super) struct Limit {
    pub(super) rows: usize,
    /// The rows of a map that the rows of its rules do not fit into, with their counts: they deny everything.
    pub(super) rows_when_full: (Arc<Rows>, [RowCounts; 2]),
}

impl Computed {
    /// Returns the rows of an audience by the committed rules: as map entries, with the redirects that they need. Contradictory
    /// rules leave the `old` rows, rows that do not fit are replaced by [`Limit::rows_when_full`].
    pub(super) fn resolve(
        engine: &Engine,
        audience: &Audience,
        limit: &Limit,
        old: Option<&Computed>,
        log_cookies: &mut LogCookies,
    ) -> Computed {
        let filters = engine.filters(audience.identity);
        let filters = match old {
            Some(old) if *old.filters == filters => old.filters.clone(),
            _ => Arc::new(filters),
        };
        match engine.resolve(audience.identity, &audience.ports, limit.rows) {
            Ok(resolved) => {
                let rows: Rows = {
                    let mut cookie = log_cookies.of_rows(&resolved);
                    resolved.rows.iter().map(|(key, row)| kernel_row(key, row, cookie(row))).collect()
                };
                let rows = Arc::new(rows);
                let enforced = [resolved.ingress_enforced, resolved.egress_enforced];
                let counts = counts(&rows);
                let missing = resolved.missing_redirects();
                let redirects = engine.redirects(&filters, &audience.ports);
                let (fault, missing_redirects) = (no_proxy(missing), missing.len());
                Computed {
                    resolved: Some(Arc::new(resolved)),
                    rows,
                    enforced,
                    counts,
                    filters,
                    fault,
                    missing_redirects,
                    redirects,
                }
            }
            Err(ResolveError::Conflict(conflict)) => Computed::conflict(&conflict.to_string(), old),
            Err(error) => Computed::denied(error, filters, limit),
        }
    }

    /// Whether the rows are those of the rules.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.fault, None | Some(Fault::NoProxy(_)))
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self.fault, Some(Fault::Full(_)))
    }

    /// Returns the previous rows, frozen: which of the contradicting rules is meant is unknown.
    fn conflict(reason: &str, old: Option<&Computed>) -> Computed {
        let reason =
            format!("{reason}; the previous policy stays in force until one of them is changed").into();
        match old.filter(|old| !matches!(old.fault, Some(Fault::ConflictFromStart(_)))) {
            Some(old) => Computed {
                resolved: None,
                rows: old.rows.clone(),
                enforced: old.enforced,
                counts: old.counts,
                filters: old.filters.clone(),
                fault: Some(Fault::Conflict(reason)),
                missing_redirects: old.missing_redirects,
                redirects: old.redirects.clone(),
            },
            None => Computed {
                fault: Some(Fault::ConflictFromStart(reason)),
                ..Computed::nothing(Arc::default())
            },
        }
    }

    fn nothing(filters: Arc<Filters>) -> Computed {
        Computed {
            resolved: None,
            rows: Arc::default(),
            enforced: [true; 2],
            counts: [RowCounts::default(); 2],
            filters,
            fault: None,
            missing_redirects: 0,
            redirects: Redirects::new(),
        }
    }

    pub(super) fn refresh(
        &mut self,
        engine: &Engine,
        peers: &[u32],
        ports: &NamedPorts,
        limit: &Limit,
        log_cookies: &mut LogCookies,
    ) {
        if self.filters.redirects_depend_on_peers() {
            self.redirects = engine.redirects(&self.filters, ports);
        }
        let Some(resolved) = &mut self.resolved else { return };
        // Copied if rows of endpoints have it.
        match engine.refresh(Arc::make_mut(resolved), peers, limit.rows) {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => {
                // Endpoints share these rows as the content of their maps: change a copy.
                let mut rows = (*self.rows).clone();
                let mut cookie = log_cookies.of_rows(resolved);
                for (key, row) in changes {
                    match row {
                        Some(row) => {
                            let (key, entry) = kernel_row(&key, &row, cookie(&row));
                            rows.insert(key, entry);
                        }
                        None => rows.remove(&row_key(&key)),
                    }
                }
                self.rows = Arc::new(rows);
                self.counts = counts(&self.rows);
            }
            Err(error) => *self = Computed::denied(error, self.filters.clone(), limit),
        }
    }

    /// Returns rows that deny everything: a subset of the rows of the rules could allow traffic that the rest denies.
    fn denied(error: ResolveError, filters: Arc<Filters>, limit: &Limit) -> Computed {
        let reason = match error {
            ResolveError::TooManyRows { needed, limit } => format!(
                "the policy needs {needed} rows and the policy map holds {limit}; the endpoint is denied wholly until \
                 policies select fewer peers and ports or bpf-policy-map-max is raised"
            ),
            other => other.to_string(),
        };
        let (rows, counts) = limit.rows_when_full.clone();
        Computed { rows, counts, fault: Some(Fault::Full(reason.into())), ..Computed::nothing(filters) }
    }
}

/// Returns the fault of redirects that cannot be made; `None` without any.
fn no_proxy(missing: &BTreeSet<Redirect>) -> Option<Fault> {
    const MAX_SHOWN: usize = 5;
    let text = summarize(missing.iter().map(Redirect::to_string), MAX_SHOWN, ", ");
    (!missing.is_empty())
        .then(|| Fault::NoProxy(format!("denied, since no proxy takes the traffic: {text}").into()))
}

pub(super) fn audience(subject: &Subject) -> Audience {
    Audience { identity: subject.identity, ports: subject.named_ports.clone() }
}

/// Returns the rows of a full map with their counts: with `lockdown`, as in Cilium, a deny of the highest precedence for
/// each direction, else none, which denies everything, too.
pub(super) fn rows_when_full(lockdown: bool) -> (Arc<Rows>, [RowCounts; 2]) {
    let deny = PolicyEntry { flags: policy_flag::DENY, precedence: u32::MAX, ..PolicyEntry::default() };
    let directions = [false, true].into_iter().filter(|_| lockdown);
    let rows: Rows = directions.map(|egress| (RowKey::new(egress, 0, 0, 0), deny)).collect();
    let counts = counts(&rows);
    (Arc::new(rows), counts)
}

fn counts(rows: &Rows) -> [RowCounts; 2] {
    let mut counts = [RowCounts::default(); 2];
    for (key, entry) in rows.iter() {
        let side = &mut counts[usize::from(key.egress)];
        *(if entry.deny() { &mut side.deny } else { &mut side.allow }) += 1;
    }
    counts
}

/// Returns the map entry of a row of the engine, with the cookie of its texts for the log.
pub(crate) fn kernel_row(key: &Key, row: &Row, cookie: u32) -> (RowKey, PolicyEntry) {
    let key = row_key(key);
    let deny = if row.deny { policy_flag::DENY } else { 0 };
    let flags = key.bits << policy_flag::PREFIX_SHIFT | deny;
    let proxy_port = row.proxy_port.to_be();
    (key, PolicyEntry { proxy_port, flags, auth_type: row.auth, precedence: row.precedence, cookie })
}

/// Returns the map key of a row of the engine.
fn row_key(key: &Key) -> RowKey {
    let l4 = u32::from(key.l4.protocol) << 16 | u32::from(key.l4.port);
    RowKey::new(key.direction == Direction::Egress, key.identity, key.l4.bits, l4)
}
