//! Changes of identities: the endpoints that are in one, and the groups that change together. Functions of rows alone.
//!
//! Policy has no verdict for the pair (new identity of one endpoint, old identity of another): for a single change it
//! has rows for both identities of that endpoint, since its peers keep theirs. So endpoints change one after the other,
//! unless the changes arrive in one batch, e.g. by labels of their namespace: then policy keeps the previous verdicts
//! between members of the group until both carry the new identity.

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
    /// The previous identities of the members.
    pub(crate) old_identities: BTreeSet<u32>,
}

impl Group {
    /// Returns the endpoints that begin a change of identity with this batch.
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

/// Returns the identity that packets of the endpoint carry and will carry; none for an endpoint that is new, changing
/// its identity or being removed.
pub(crate) fn carried_identity(endpoint: &Endpoint) -> Option<u32> {
    let identity = endpoint.applied_identity;
    let stays = !is_new(endpoint) && identity == endpoint.record.identity() && !endpoint.state.is_leaving();
    stays.then_some(identity)
}

/// Whether packets of the endpoint carry an identity other than the desired one.
pub(crate) fn changes_identity(endpoint: &Endpoint) -> bool {
    let regenerates =
        matches!(endpoint.state, State::WaitingToRegenerate | State::Regenerating | State::Ready);
    regenerates && !is_new(endpoint) && endpoint.applied_identity != endpoint.record.identity()
}

/// Whether the group must wait for this member: its packets do not carry its new identity yet, and are expected to.
pub(crate) fn is_behind(member: &Endpoint, group: &Arc<BTreeSet<u16>>) -> bool {
    let waits_as_well = member.regeneration.as_ref().is_some_and(|regeneration| {
        regeneration.step == Step::Peers && regeneration.together.as_ref() == Some(group)
    });
    // A failed member is retried alone, so the group does not wait for it.
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

    /// An endpoint with an applied identity that differs from the desired one.
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
        let now = Instant::now();
        Regeneration { step, policy: 1, begun: now, entered: now, deadline: now, together }
    }
}
