//! The current options of the datapath.

use hive::ConfigWatch;

use crate::config::{ConntrackConfig, LoaderConfig, Notifications};
use crate::services::{ServiceSettings, ServicesConfig};
use hive::OptionError;

/// The current options, with watches on them.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) config: LoaderConfig,
    pub(crate) conntrack: ConntrackConfig,
    pub(crate) services: ServiceSettings,
    /// The events that are reported to monitors.
    pub(crate) notifications: Notifications,
    watched: (ConfigWatch<LoaderConfig>, ConfigWatch<ConntrackConfig>, ConfigWatch<ServicesConfig>),
}

impl Live {
    /// Reads the options of the start. The hive has checked them, and checks each later change.
    pub(crate) fn new(
        config: ConfigWatch<LoaderConfig>,
        conntrack: ConfigWatch<ConntrackConfig>,
        services: ConfigWatch<ServicesConfig>,
    ) -> Result<Live, OptionError> {
        Ok(Live {
            notifications: config.get().notifications()?,
            services: services.get().settings()?,
            conntrack: (*conntrack.get()).clone(),
            config: (*config.get()).clone(),
            watched: (config, conntrack, services),
        })
    }

    /// Waits for a change and reads the options again. Cancel safe.
    pub(crate) async fn changed(&mut self) -> Result<(), OptionError> {
        let (config, conntrack, services) = &mut self.watched;
        tokio::select! {
            () = config.changed() => {}
            () = conntrack.changed() => {}
            () = services.changed() => {}
        }
        *self = Live::new(config.clone(), conntrack.clone(), services.clone())?;
        Ok(())
    }
}
