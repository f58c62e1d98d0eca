//! Errors.

use k8s_types::selector::SelectorError;

/// Why nodes cannot be tainted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The selector of agent pods cannot be read.
    #[error("cilium-pod-labels: {value:?} is wrong: give a selector, as k8s-app=cilium")]
    PodLabels {
        /// The value.
        value: String,
        /// The reason.
        #[source]
        source: SelectorError,
    },
}
