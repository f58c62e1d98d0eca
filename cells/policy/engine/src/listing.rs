//! Lists selectors in the form of the API: all of them, or the changed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::{Engine, StoredRule};
use crate::selections::{Selections, SelectorId, Selects};
use crate::selector::{FqdnSelector, Selector};

/// A selector in the form of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorRow {
    /// The selector's text.
    pub selector: Arc<str>,
    /// The DNS name or pattern, if it selects by these.
    pub fqdn: Option<FqdnSelector>,
    /// The identities that it selects, sorted.
    pub identities: Vec<u32>,
    /// The number of policy entries that use it.
    pub users: usize,
    /// The labels of these entries, without duplicates.
    pub labels: Vec<Arc<[String]>>,
}

/// Changed selectors by their texts; `None` for selectors that are no longer in use.
pub type SelectorChanges = Vec<(Arc<str>, Option<SelectorRow>)>;

impl Engine {
    /// Returns the selectors of peers in use.
    pub fn selectors(&self) -> Vec<SelectorRow> {
        self.list(&self.peers, |_| true, |engine, id| engine.labels_of_peer(id)).into_values().collect()
    }

    /// Returns the selectors of subjects in use.
    pub fn subject_selectors(&self) -> Vec<SelectorRow> {
        self.list(&self.subjects, |_| true, |engine, id| engine.labels_of_subject(id)).into_values().collect()
    }

    /// Returns the number of selectors of peers in use.
    pub fn peer_selector_count(&self) -> usize {
        self.peers.len()
    }

    /// Returns the number of identities that selectors of peers may select.
    pub fn identity_count(&self) -> usize {
        self.identities.len()
    }

    /// Returns the changes of [`selectors`](Self::selectors) since the last call. Linear in all selectors and in the
    /// rules of policies that use a changed one.
    pub fn take_selector_changes(&mut self) -> SelectorChanges {
        let changed = self.peers.take_changed();
        let rows =
            self.list(&self.peers, |text| changed.contains(text), |engine, id| engine.labels_of_peer(id));
        with_gone(changed, rows)
    }

    /// Returns the changes of [`subject_selectors`](Self::subject_selectors) since the last call.
    pub fn take_subject_selector_changes(&mut self) -> SelectorChanges {
        let changed = self.subjects.take_changed();
        let of = |engine: &Engine, id| engine.labels_of_subject(id);
        let rows = self.list(&self.subjects, |text| changed.contains(text), of);
        with_gone(changed, rows)
    }

    fn labels_of_peer(&self, id: SelectorId) -> Vec<Arc<[String]>> {
        labels(self.rules_of(self.users_of(id)).filter(|rule| rule.peers.contains(&id)))
    }

    fn labels_of_subject(&self, id: SelectorId) -> Vec<Arc<[String]>> {
        labels(self.rules_of(std::iter::once(id)).filter(|rule| rule.subject == id))
    }

    fn list<S: Selects + Clone>(
        &self,
        selections: &Selections<S>,
        wanted: impl Fn(&str) -> bool,
        labels_of: impl Fn(&Engine, SelectorId) -> Vec<Arc<[String]>>,
    ) -> BTreeMap<Arc<str>, SelectorRow> {
        let mut rows: BTreeMap<Arc<str>, SelectorRow> = BTreeMap::new();
        // A selector of nodes and one of endpoints may have the same text; the API lists them as one row.
        for (id, selection) in selections.iter().filter(|(_, selection)| wanted(&selection.text)) {
            let row = rows.entry(selection.text.clone()).or_insert_with_key(|text| SelectorRow {
                selector: text.clone(),
                fqdn: match selection.selector.selector() {
                    Selector::Fqdn(fqdn) => Some(fqdn.clone()),
                    _ => None,
                },
                identities: Vec::new(),
                users: 0,
                labels: Vec::new(),
            });
            row.identities.extend(&selection.identities);
            row.users += selection.users;
            row.labels.extend(labels_of(self, id));
        }
        for row in rows.values_mut() {
            row.identities.sort_unstable();
            row.labels.sort_unstable();
            row.labels.dedup();
        }
        rows
    }
}

fn labels<'a>(rules: impl Iterator<Item = &'a StoredRule>) -> Vec<Arc<[String]>> {
    rules.map(|rule| rule.rule.labels.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn with_gone(changed: BTreeSet<Arc<str>>, mut rows: BTreeMap<Arc<str>, SelectorRow>) -> SelectorChanges {
    let row = |text: Arc<str>| {
        let row = rows.remove(&text);
        (text, row)
    };
    changed.into_iter().map(row).collect()
}
