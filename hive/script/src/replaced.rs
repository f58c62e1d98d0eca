//! Another hive in the place of the one that a script runs against.

use std::sync::Arc;

use anyhow::bail;
use hive::Hive;
use hive_command::{Call, Command, Output};
use parking_lot::RwLock;
use tokio::sync::Mutex;

use crate::command::Run;
use crate::engine::Engine;
use crate::error::Duplicate;
use crate::hive_commands::stop_hive;

/// Returns the engine with the command `hive/recreate`, which stops the hive, builds another one, and continues with that:
/// commands of the same names are those of the new hive's engine, also in the retries of a section that was begun before.
pub fn replaceable<F, Fut>(engine: &Engine, hive: &Arc<Mutex<Hive>>, build: F) -> Result<Engine, Duplicate>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<(Hive, Engine)>> + Send + 'static,
{
    let current = Arc::new(RwLock::new(engine.clone()));
    let delegating = engine.delegating(|name| {
        let (name, current) = (Arc::<str>::from(name), Arc::clone(&current));
        move |call: Call| {
            let command = current.read().command(&name).map(|command| command.run().clone());
            let name = Arc::clone(&name);
            async move {
                match command {
                    Some(Run::Function(run)) => run(call).await,
                    _ => bail!("the hive has no command {name} any more"),
                }
            }
        }
    });
    let (hive, build) = (Arc::clone(hive), Arc::new(build));
    let recreate = move |call: Call| {
        let (hive, build, current) = (Arc::clone(&hive), Arc::clone(&build), Arc::clone(&current));
        async move {
            let [] = call.exactly()?;
            stop_hive(&hive).await?;
            let (new, engine) = build().await?;
            *hive.lock().await = new;
            *current.write() = engine;
            Ok(Output::none())
        }
    };
    delegating.with([Command::new("hive/recreate", "stop the hive and build another one", recreate)])
}
