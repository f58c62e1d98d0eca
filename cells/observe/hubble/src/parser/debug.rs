//! Debug messages of the programs.

use hubble_api::flow::{DebugEvent, Endpoint};
use monitor_events::{Debug, Printer};

use super::local_endpoint;
use crate::names::Names;

/// Returns the event of a debug message, from the ring of `cpu`.
pub(crate) fn debug_event(message: &Debug, cpu: i64, names: &dyn Names) -> DebugEvent {
    let source = match message.source {
        0 => None,
        id => Some(
            names.local(id).map_or_else(|| Endpoint { id: id.into(), ..Endpoint::default() }, local_endpoint),
        ),
    };
    let [arg1, arg2, arg3] = message.args.map(Some);
    DebugEvent {
        r#type: message.id.into(),
        source,
        hash: Some(message.hash),
        arg1,
        arg2,
        arg3,
        message: Printer::default().debug_message(message),
        cpu: i32::try_from(cpu).ok(),
    }
}
