//! Changes of identities: which endpoints are in one, and which of them change together. Functions of rows alone.
//!
//! Policy says nothing of the pair (new identity of one, old identity of another): it has rows for both identities of one
//! that changes alone, as its peers stay as they are. So endpoints change one after the other, unless their changes come
//! in one batch, as by labels of their namespace: then policy keeps the verdicts about each two of them until both carry
//! the new one.

use std::collections::BTreeSet;
use std::sync::Arc;

use reconciler::StatusKind;

use crate::model::endpoint::Endpoint;
use crate::model::regeneration::Step;
use crate::model::state::State;

/// Endpoints that change their identities together; empty unless there are two.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// The ids of the endpoints.
    pub(crate) members: Option<Arc<BTreeSet<u16>>>,
    /// The identities that they give up.
    pub(crate) old_identities: BTreeSet<u32>,
}

impl Group {
    /// Returns the endpoints whose change of identity begins with this batch.
    pub(crate) fn beginning<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Group {
        let begins = |endpoint: &&Endpoint| endpoint.regeneration.is_none() && changes_identity(endpoint);
        let changing: Vec<&Endpoint> = endpoints.filter(begins).collect();
        if changing.len() < 2 {
            return Group::default();
        }
        Group {
            members: Some(Arc::new(changing.iter().map(|endpoint| endpoint.record.id).collect())),
            old_identities: changing.iter().map(|endpoint| endpoint.applied_identity).collect(),
        }
    }
}

/// Whether the kernel does not know the endpoint yet.
pub(crate) fn is_new(endpoint: &Endpoint) -> bool {
    endpoint.applied_identity == 0
}

/// Returns the identity that packets of the endpoint carry and go on to carry; none of one that is new, about to give it up
/// or being removed.
pub(crate) fn carried_identity(endpoint: &Endpoint) -> Option<u32> {
    let identity = endpoint.applied_identity;
    let stays = !is_new(endpoint) && identity == endpoint.record.identity() && !endpoint.state.is_leaving();
    stays.then_some(identity)
}

/// Whether packets of the endpoint carry an identity that it is about to give up.
pub(crate) fn changes_identity(endpoint: &Endpoint) -> bool {
    let regenerates =
        matches!(endpoint.state, State::WaitingToRegenerate | State::Regenerating | State::Ready);
    regenerates && !is_new(endpoint) && endpoint.applied_identity != endpoint.record.identity()
}

/// Whether a member of the group holds up the others: its packets do not carry its new identity yet, and still will.
pub(crate) fn is_behind(member: &Endpoint, group: &Arc<BTreeSet<u16>>) -> bool {
    let waits_as_well = member.regeneration.as_ref().is_some_and(|regeneration| {
        regeneration.step == Step::Peers && regeneration.together.as_ref() == Some(group)
    });
    // One that has failed is retried by itself.
    let has_failed = member.status.kind() == StatusKind::Error;
    changes_identity(member) && !waits_as_well && !has_failed
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use labels::Labels;
    use reconciler::Status;
    use tokio::time::Instant;

    use super::*;
    use crate::model::record::{Record, SecurityLabel};
    use crate::model::regeneration::Regeneration;

    /// An endpoint whose packets carry one identity and whose record has another.
    fn endpoint(id: u16, applied: u32, desired: u32) -> Endpoint {
        let sec_label = Some(SecurityLabel { id: desired, labels: Labels::default() });
        let record = Record { id, sec_label, ..Record::default() };
        let created = Endpoint::created(record, SystemTime::UNIX_EPOCH);
        Endpoint { applied_identity: applied, state: State::Ready, ..created }
    }

    fn members(group: &Group) -> Vec<u16> {
        group.members.iter().flat_map(|members| members.iter().copied()).collect()
    }

    #[test]
    fn only_endpoints_that_begin_to_change_form_a_group() {
        let mut under_way = endpoint(5, 300, 301);
        under_way.regeneration = Some(Arc::new(regeneration(Step::Policy, None)));
        let rows = [
            endpoint(1, 300, 301),
            endpoint(2, 300, 300),
            endpoint(3, 0, 301),
            endpoint(4, 302, 303),
            under_way,
            Endpoint { state: State::Disconnecting, ..endpoint(6, 300, 301) },
        ];
        let group = Group::beginning(rows.iter());
        assert_eq!(members(&group), [1, 4]);
        assert_eq!(group.old_identities, BTreeSet::from([300, 302]));
        assert_eq!(Group::beginning(rows[..3].iter()), Group::default(), "one alone meets peers that stay");
    }

    #[test]
    fn an_identity_is_carried_while_the_endpoint_keeps_it() {
        assert_eq!(carried_identity(&endpoint(1, 300, 300)), Some(300));
        assert_eq!(carried_identity(&endpoint(1, 300, 301)), None, "it is about to give it up");
        assert_eq!(carried_identity(&endpoint(1, 0, 300)), None, "the kernel does not know it");
        let leaving = Endpoint { state: State::Disconnecting, ..endpoint(1, 300, 300) };
        assert_eq!(carried_identity(&leaving), None);
    }

    #[test]
    fn a_member_is_behind_until_it_waits_for_the_same_group_or_fails() {
        let group = Arc::new(BTreeSet::from([1, 2]));
        let at = |step, together: &Arc<BTreeSet<u16>>| Endpoint {
            regeneration: Some(Arc::new(regeneration(step, Some(together.clone())))),
            ..endpoint(2, 300, 301)
        };
        assert!(is_behind(&at(Step::Ipcache, &group), &group));
        assert!(!is_behind(&at(Step::Peers, &group), &group));
        assert!(is_behind(&at(Step::Peers, &Arc::new(BTreeSet::from([2, 3]))), &group));
        assert!(!is_behind(&endpoint(2, 301, 301), &group), "it carries the new one");
        let failed = Status::failed("refused");
        assert!(!is_behind(&Endpoint { status: failed, ..at(Step::Policy, &group) }, &group));
    }

    fn regeneration(step: Step, together: Option<Arc<BTreeSet<u16>>>) -> Regeneration {
        Regeneration { step, policy: 1, deadline: Instant::now(), together }
    }
}
