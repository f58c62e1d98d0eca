//! What a watch has told, as objects.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_types::{SourceError, WatchEvent};
use serde_json::Value;

/// How long an event may take.
const LIMIT: Duration = Duration::from_secs(20);

/// The objects of one namespace by their names.
pub(super) struct Mirror {
    events: BoxStream<'static, Result<WatchEvent, SourceError>>,
    pub(super) objects: BTreeMap<String, Value>,
    listing: Option<BTreeMap<String, Value>>,
}

impl Mirror {
    pub(super) fn of(events: BoxStream<'static, Result<WatchEvent, SourceError>>) -> Mirror {
        Mirror { events, objects: BTreeMap::new(), listing: None }
    }

    /// Waits for the first list.
    pub(super) async fn listed(&mut self) {
        assert_eq!(self.next().await, "restart");
        while self.next().await != "listed" {}
    }

    /// Waits until the objects are so.
    pub(super) async fn until(&mut self, is_so: impl Fn(&BTreeMap<String, Value>) -> bool) {
        while self.listing.is_some() || !is_so(&self.objects) {
            self.next().await;
        }
    }

    /// The next event that says something of objects. Errors are told by sources as they come; what they have to say
    /// follows all the same.
    pub(super) async fn next(&mut self) -> String {
        let event = async {
            loop {
                match self.events.next().await.expect("a watch never ends") {
                    Ok(WatchEvent::Progress) | Err(_) => {}
                    Ok(event) => return event,
                }
            }
        };
        let event = tokio::time::timeout(LIMIT, event).await.expect("the watch says nothing");
        match event {
            WatchEvent::Restart => {
                self.listing = Some(BTreeMap::new());
                "restart".to_owned()
            }
            WatchEvent::Listed => {
                self.objects = self.listing.take().expect("a list ends that has not begun");
                "listed".to_owned()
            }
            WatchEvent::Applied { json, .. } => {
                let object: Value = serde_json::from_slice(&json).expect("an object is no JSON");
                let name = object["metadata"]["name"].as_str().expect("an object without a name").to_owned();
                let told = format!("applied {name}");
                self.listing.as_mut().unwrap_or(&mut self.objects).insert(name, object);
                told
            }
            WatchEvent::Deleted(key) => {
                self.listing.as_mut().unwrap_or(&mut self.objects).remove(key.name.as_str());
                format!("deleted {}", key.name)
            }
            WatchEvent::Progress => unreachable!("skipped above"),
        }
    }
}
