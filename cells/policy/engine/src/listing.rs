//! Lists selectors in the form of the API: all of them, or the changed ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::Engine;
use crate::identity_ids::IdentityIds;
use crate::selections::{Selections, Selects};
use crate::selector::FqdnSelector;
use crate::selector_text::SelectorText;

/// A selector in the form of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorRow {
    /// The selector's text.
    pub selector: SelectorText,
    /// The DNS name or pattern, if it selects by these.
    pub fqdn: Option<Box<FqdnSelector>>,
    /// The identities that it selects.
    pub identities: IdentityIds,
    /// The policy entries that use it. The thousands of prefixes of a rule share one value.
    pub uses: Arc<SelectorUses>,
}

/// The policy entries that use a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorUses {
    /// The number of entries.
    pub count: usize,
    /// The labels of the entries, without duplicates.
    pub labels: Arc<[Arc<[String]>]>,
}

/// Changed selectors by their texts; `None` for selectors that are no longer in use.
pub type SelectorChanges = Vec<(SelectorText, Option<SelectorRow>)>;

impl Engine {
    /// Returns the selectors of peers in use.
    pub fn selectors(&self) -> Vec<SelectorRow> {
        all(&self.peers)
    }

    /// Returns the selectors of subjects in use.
    pub fn subject_selectors(&self) -> Vec<SelectorRow> {
        all(&self.subjects)
    }

    /// Returns the number of selectors of peers in use.
    pub fn peer_selector_count(&self) -> usize {
        self.peers.len()
    }

    /// Returns how many selectors of peers were added and removed since the start.
    pub fn peer_selector_churn(&self) -> (u64, u64) {
        let added = self.peers.added();
        (added, added.saturating_sub(self.peers.len() as u64))
    }

    /// Returns the number of identities that selectors of peers may select.
    pub fn identity_count(&self) -> usize {
        self.identities.len()
    }

    /// Returns the changes of [`selectors`](Self::selectors) since the last call. Linear in the changed selectors and
    /// the identities that they select.
    pub fn take_selector_changes(&mut self) -> SelectorChanges {
        changes(&mut self.peers)
    }

    /// Returns the changes of [`subject_selectors`](Self::subject_selectors) since the last call.
    pub fn take_subject_selector_changes(&mut self) -> SelectorChanges {
        changes(&mut self.subjects)
    }
}

fn all<S: Selects + Clone>(selections: &Selections<S>) -> Vec<SelectorRow> {
    let mut last = None;
    selections.texts().into_iter().filter_map(|text| row(selections, text, &mut last)).collect()
}

fn changes<S: Selects + Clone>(selections: &mut Selections<S>) -> SelectorChanges {
    let changed = selections.take_changed();
    let mut last = None;
    let with_row = |text: SelectorText| (text.clone(), row(selections, text, &mut last));
    changed.into_iter().map(with_row).collect()
}

/// Returns the row of the selectors with a text; `None` if there is none. A selector of nodes and one of endpoints may
/// have the same text; the API lists them as one row. `last` are the uses of the previous row.
fn row<S: Selects + Clone>(
    selections: &Selections<S>,
    text: SelectorText,
    last: &mut Option<Arc<SelectorUses>>,
) -> Option<SelectorRow> {
    let with_text = selections.with_text(&text);
    let (first, others) = with_text.split_first()?;
    let labels = first.uses.labels(last.as_ref().map(|last| &last.labels));
    let count = first.uses.count;
    let is_same = |last: &&Arc<SelectorUses>| last.count == count && Arc::ptr_eq(&last.labels, &labels);
    let uses = last.as_ref().filter(is_same).cloned();
    let uses = uses.unwrap_or_else(|| Arc::new(SelectorUses { count, labels }));
    *last = Some(uses.clone());
    let fqdn = first.fqdn().cloned().map(Box::new);
    let mut row = SelectorRow { selector: text, fqdn, identities: first.identities.clone(), uses };
    if !others.is_empty() {
        row.identities = with_text.iter().flat_map(|same| same.identities.iter().copied()).collect();
        let labels: BTreeSet<_> = with_text
            .iter()
            .flat_map(|same| same.uses.labels(None).iter().cloned().collect::<Vec<_>>())
            .collect();
        let count = with_text.iter().map(|same| same.uses.count).sum();
        row.uses = Arc::new(SelectorUses { count, labels: labels.into_iter().collect() });
    }
    Some(row)
}
