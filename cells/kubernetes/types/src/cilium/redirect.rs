//! Local redirect policies.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// Redirects traffic for a service or an address to pods of the same node.
    pub struct CiliumLocalRedirectPolicy {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The source and the target of the redirection.
        always pub spec: LocalRedirectPolicySpec,
        /// The observed state.
        always pub status: LocalRedirectPolicyStatus,
    }

    /// The source and the target of the redirection.
    pub struct LocalRedirectPolicySpec {
        /// The traffic to redirect.
        always pub redirect_frontend: RedirectFrontend,
        /// The target pods.
        always pub redirect_backend: RedirectBackend,
        /// Whether traffic of the selected pods themselves is exempt.
        pub skip_redirect_from_backend: bool,
        /// The purpose.
        pub description: SmolStr,
    }

    /// The traffic to redirect; exactly one field is set.
    pub struct RedirectFrontend {
        /// Traffic to an address.
        pub address_matcher: Option<AddressMatcher>,
        /// Traffic to a service.
        pub service_matcher: Option<ServiceMatcher>,
    }

    /// An address with its ports.
    pub struct AddressMatcher {
        /// The address.
        always pub ip: SmolStr,
        /// Its ports.
        always pub to_ports: Vec<PortInfo>,
    }

    /// A service of the policy's namespace.
    pub struct ServiceMatcher {
        /// Its name.
        always pub service_name: SmolStr,
        /// Its namespace.
        always pub namespace: SmolStr,
        /// Its ports; empty for all.
        pub to_ports: Vec<PortInfo>,
    }

    /// Pods of the same node.
    pub struct RedirectBackend {
        /// The pods.
        always pub local_endpoint_selector: LabelSelector,
        /// Their ports.
        always pub to_ports: Vec<PortInfo>,
    }

    /// A port. Names are required if there are several.
    pub struct PortInfo {
        /// Its number.
        always pub port: SmolStr,
        /// `TCP` or `UDP`.
        always pub protocol: SmolStr,
        /// Its name, which matches frontend and backend ports.
        always pub name: SmolStr,
    }

    /// The status of a local redirect policy.
    pub struct LocalRedirectPolicyStatus {
        /// Whether it is in force.
        pub ok: bool,
    }
}

resource!(CiliumLocalRedirectPolicy);
