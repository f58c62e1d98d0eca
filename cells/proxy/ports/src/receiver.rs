//! Proxies that hold policies of their own.

use std::fmt;
use std::pin::Pin;

/// A proxy that holds the policies of endpoints, and gets changed ones before policy maps do: a map must not lead
/// traffic to it that it does not know to be allowed.
pub trait PolicyReceiver: fmt::Debug + Send + Sync {
    /// Whether redirects lead to it. Otherwise nothing waits for it.
    fn is_in_use(&self) -> bool;

    /// Resolves when it has the policies of the tables `endpoint-policies` and `selectors` as they are at the call, or
    /// refuses them, or is gone. May take for ever.
    fn received(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}
