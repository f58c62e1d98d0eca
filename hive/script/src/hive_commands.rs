//! Commands on the hive under test.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use hive::{Hive, State};
use hive_command::{Call, Command, Output};
use tokio::sync::Mutex;

/// The time limit of a start or a stop.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the commands `hive`, `hive/start` and `hive/stop`. Both are idempotent, because sections are retried:
/// starting a running hive and stopping a stopped one succeed.
pub fn hive_commands(hive: &Arc<Mutex<Hive>>) -> Vec<Command> {
    let (any, start, stop) = (hive.clone(), hive.clone(), hive.clone());
    vec![
        Command::new("hive", "print the hive, start or stop it", move |call: Call| {
            let hive = any.clone();
            async move {
                match call.at_most_one()? {
                    None => call.log_text(&hive.lock().await.tree()),
                    Some("start") => start_hive(&hive).await?,
                    Some("stop") => stop_hive(&hive).await?,
                    Some(other) => bail!("`{other}` is neither `start` nor `stop`"),
                }
                Ok(Output::none())
            }
        })
        .takes("[start|stop]")
        .completes(|_| vec!["start".to_owned(), "stop".to_owned()]),
        Command::new("hive/start", "start the hive", move |call: Call| {
            let hive = start.clone();
            async move {
                let [] = call.exactly()?;
                start_hive(&hive).await?;
                Ok(Output::none())
            }
        }),
        Command::new("hive/stop", "stop the hive", move |call: Call| {
            let hive = stop.clone();
            async move {
                let [] = call.exactly()?;
                stop_hive(&hive).await?;
                Ok(Output::none())
            }
        }),
    ]
}

async fn start_hive(hive: &Mutex<Hive>) -> anyhow::Result<()> {
    let mut hive = hive.lock().await;
    if hive.state() != State::Started {
        tokio::time::timeout(LIMIT, hive.start()).await??;
    }
    Ok(())
}

/// Stops a hive if it runs.
pub async fn stop_hive(hive: &Mutex<Hive>) -> anyhow::Result<()> {
    let mut hive = hive.lock().await;
    if hive.state() == State::Started {
        tokio::time::timeout(LIMIT, hive.stop()).await??;
    }
    Ok(())
}
