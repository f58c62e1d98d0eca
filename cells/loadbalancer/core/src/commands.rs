//! The commands `lb/*` of scripts and of the shell.

use std::sync::Arc;

use anyhow::{anyhow, ensure};
use hive::prelude::*;
use hive_command::{Call, Command, Flag, Output};
use parking_lot::Mutex;

use crate::lbmap::dump::dump;
use crate::lbmap::rows::{Key, Value};
use crate::model::address::Protocol;
use crate::reconciler::control::Control;

pub(crate) fn commands(control: Arc<Control>) -> Members<Command> {
    let saved = Arc::new(Mutex::new(Vec::new()));
    let of = control.clone();
    let dumps = Command::new("lb/maps-dump", "dump the load balancer maps", move |call: Call| {
        let control = of.clone();
        async move {
            let text = maps_dump(&control).await?;
            match call.at_most_one()? {
                None => Ok(Output::text(text)),
                Some(file) => {
                    call.write(file, text)?;
                    Ok(Output::none())
                }
            }
        }
    });
    let of = control.clone();
    let empty = Command::new("lb/maps-empty", "check that the load balancer maps are empty", move |_| {
        let control = of.clone();
        async move {
            let text = maps_dump(&control).await?;
            ensure!(text.is_empty(), "the maps are not empty:\n{text}");
            Ok(Output::none())
        }
    });
    let (of, snapshot) = (control.clone(), saved.clone());
    let saves =
        Command::new("lb/maps-snapshot", "keep a copy of the rows of the maps in memory", move |_| {
            let (control, saved) = (of.clone(), snapshot.clone());
            async move {
                let rows = control.maps().await?.all_rows().map_err(|error| anyhow!(error))?;
                saved.lock().extend(rows.into_iter().filter(|(key, _)| is_kept(key)));
                Ok(Output::none())
            }
        });
    let of = control.clone();
    let restores =
        Command::new("lb/maps-restore", "write the copied rows into the maps", move |call: Call| {
            let (control, saved) = (of.clone(), saved.clone());
            async move {
                let mut rows = saved.lock().clone();
                if call.flags.is_on("any-proto") {
                    rows = rows.into_iter().map(of_any_protocol).collect();
                }
                control.maps().await?.put_all(&rows).map_err(|error| anyhow!(error))?;
                Ok(Output::none())
            }
        });
    let prune =
        Command::new("lb/prune", "delete entries that no service desires, and wait for it", move |_| {
            let control = control.clone();
            async move {
                control.running().await?.handle.pruned().await?;
                Ok(Output::none())
            }
        });
    Members(vec![
        dumps.takes("(output file)"),
        empty,
        saves.detail("Services, backends, reverse NAT and source ranges. Further copies are added to it."),
        restores
            .detail("Rows that are there otherwise stay, unless they have the same key.")
            .flag(Flag::switch("any-proto", "as written by versions that did not distinguish protocols")),
        prune,
    ])
}

async fn maps_dump(control: &Control) -> anyhow::Result<String> {
    let maps = control.maps().await?;
    let rows = maps.all_rows().map_err(|error| anyhow!(error))?;
    dump(&rows, |key| maps.table(key)).map_err(|error| anyhow!(error))
}

fn is_kept(key: &Key) -> bool {
    !matches!(key, Key::AffinityMatch(..) | Key::Maglev(..))
}

fn of_any_protocol((key, value): (Key, Value)) -> (Key, Value) {
    let key = match key {
        Key::Service(mut address, slot) => {
            address.protocol = Protocol::Any;
            Key::Service(address, slot)
        }
        key => key,
    };
    let value = match value {
        Value::Backend(mut backend) => {
            backend.address.protocol = Protocol::Any;
            Value::Backend(backend)
        }
        value => value,
    };
    (key, value)
}
