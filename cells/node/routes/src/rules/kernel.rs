//! The operations of the reconciler: rows to the kernel's rules.

use devices::rtnetlink::Rule;
use devices::{Netlink, NetlinkError};
use reconciler::{OpCx, OpResult, Ops};
use statedb::{Rows, Snapshot, Table};

use super::handle::Claims;
use crate::DesiredRule;

/// The kernel's rules as the target of the reconciler. Opens its socket at the first use, on the thread of the
/// reconciler.
pub(super) struct KernelRules {
    desired: Table<DesiredRule>,
    claims: Claims,
    socket: Option<Netlink>,
}

impl KernelRules {
    pub(super) fn new(desired: Table<DesiredRule>, claims: Claims) -> Self {
        Self { desired, claims, socket: None }
    }

    /// Runs requests on the socket. After an error answers may still be in flight: the next attempt has a new one.
    fn with(&mut self, work: impl FnOnce(&Self, &mut Netlink) -> Result<(), NetlinkError>) -> OpResult {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => Netlink::open()?,
        };
        work(self, &mut socket)?;
        self.socket = Some(socket);
        Ok(())
    }

    fn is_desired(&self, snapshot: &Snapshot, rule: &Rule) -> bool {
        self.desired.all(snapshot).any(|row| row.rule == *rule)
    }
}

impl Ops<DesiredRule> for KernelRules {
    fn update(&mut self, _: &OpCx<'_>, row: &mut DesiredRule) -> OpResult {
        self.with(|_, socket| {
            add(socket, &row.rule)?;
            // Last: without any rule of the local table this node would be unreachable.
            row.replaced().map_or(Ok(()), |replaced| delete(socket, &replaced))
        })
    }

    fn delete(&mut self, cx: &OpCx<'_>, row: &DesiredRule) -> OpResult {
        self.with(|ops, socket| {
            if ops.is_desired(cx.snapshot, &row.rule) {
                return Ok(());
            }
            if let Some(replaced) = row.replaced() {
                add(socket, &replaced)?;
            }
            delete(socket, &row.rule)
        })
    }

    fn prune(&mut self, cx: &OpCx<'_>, _: Rows<'_, DesiredRule>) -> OpResult {
        self.with(|ops, socket| {
            let claims = ops.claims.lock().clone();
            let is_claimed = |rule: &Rule| claims.contains(&(rule.priority, rule.table));
            for rule in socket.rules()? {
                if is_claimed(&rule) && !ops.is_desired(cx.snapshot, &rule) {
                    delete(socket, &rule)?;
                    tracing::info!(%rule, "Deleted a rule of the previous run");
                }
            }
            Ok(())
        })
    }
}

fn add(socket: &mut Netlink, rule: &Rule) -> Result<(), NetlinkError> {
    match socket.add_rule(rule) {
        Err(error) if !error.is_exists() => Err(error),
        _ => Ok(()),
    }
}

fn delete(socket: &mut Netlink, rule: &Rule) -> Result<(), NetlinkError> {
    match socket.delete_rule(rule) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
