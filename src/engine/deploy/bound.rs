//! Why the sizes of a deployment are upper bounds.

/// The cause of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundCause {
    /// The model is unknown: bounds over all known models.
    UnknownModel,
    /// The name of the model does not determine the type of its cache.
    UnknownCacheType,
    /// The device's pools determine how L2 is split over its pools, and they are unknown.
    UnknownDevicePools,
}

impl BoundCause {
    /// The cause in a few words.
    pub fn text(self) -> &'static str {
        match self {
            BoundCause::UnknownModel => "the model is unknown",
            BoundCause::UnknownCacheType => "the type of the cache is unknown",
            BoundCause::UnknownDevicePools => "the pools on the device are unknown",
        }
    }

    /// What removes the bound.
    pub fn remedy(self) -> &'static str {
        match self {
            BoundCause::UnknownModel => "set model.known_as",
            BoundCause::UnknownCacheType => "set model.kv_cache",
            BoundCause::UnknownDevicePools => {
                "set model.device_tokens, and model.device_mamba_slots for a model with states"
            }
        }
    }

    /// The key that removes the bound.
    pub fn key(self) -> &'static str {
        match self {
            BoundCause::UnknownModel => "model.known_as",
            BoundCause::UnknownCacheType => "model.kv_cache",
            BoundCause::UnknownDevicePools => "model.device_tokens",
        }
    }
}
