//! The arguments of `setup`, which are positional arguments, keywords or one dictionary.

use mcctl_base::ByteSize;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// The names of the arguments, in the order of the positional ones.
const NAMES: [&str; 13] = [
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "engine",
    "enable_ssd_offload",
    "ssd_offload_path",
    "tenant_id",
    "enable_client_http_server",
    "client_http_port",
];
/// Number of positional arguments without a default.
const REQUIRED: usize = 7;
/// A key of the dictionary that is not an argument.
const SOCKET_PATH: &str = "ipc_socket_path";
/// Sizes in bytes that upstream uses for a dictionary without them.
const DICTIONARY_SIZE: u64 = 16 << 20;
/// The port that upstream's client uses for its HTTP server.
const HTTP_PORT: u16 = 9300;

/// The arguments of `setup`.
#[derive(Debug)]
pub(crate) struct SetupArguments {
    pub local_hostname: String,
    pub metadata_server: String,
    pub segment_bytes: u64,
    pub buffer_bytes: u64,
    pub protocol: String,
    pub devices: String,
    pub master: String,
    pub has_engine: bool,
    pub has_ssd_offload: bool,
    pub tenant: String,
    /// The port of the client's HTTP server, if it is enabled.
    pub http_port: Option<u16>,
}

/// Returns the arguments.
///
/// # Errors
/// Outer error: the arguments are not those of `setup`. Inner error: a dictionary's value is not
/// valid, which `setup` reports with a code.
pub(crate) fn arguments_of(
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<Result<SetupArguments, String>> {
    let py = args.py();
    let given = PyDict::new(py);
    let dictionary = match (args.len(), kwargs) {
        (1, None) => args.get_item(0)?.cast_into::<PyDict>().ok(),
        (0, Some(kwargs)) if kwargs.len() == 1 => match kwargs.get_item("config")? {
            Some(config) => Some(config.cast_into::<PyDict>()?),
            None => None,
        },
        _ => None,
    };
    if let Some(dictionary) = &dictionary {
        for (name, value) in dictionary {
            let name: String = name.extract()?;
            if !NAMES.contains(&&*name) && name != SOCKET_PATH {
                // The wheel's client ignores it without a message. LMCache passes keys of its own.
                tracing::warn!(key = name, "unknown key in the configuration; known keys: {}", NAMES.join(", "));
                continue;
            }
            given.set_item(name, value)?;
        }
    } else {
        if args.len() > NAMES.len() {
            return Err(PyTypeError::new_err(format!("setup() takes at most {} arguments", NAMES.len())));
        }
        for (name, value) in NAMES.iter().zip(args) {
            given.set_item(name, value)?;
        }
        for (name, value) in kwargs.into_iter().flatten() {
            let name: String = name.extract()?;
            if !NAMES.contains(&&*name) || given.contains(&name)? {
                return Err(PyTypeError::new_err(format!("setup() got an unexpected keyword argument '{name}'")));
            }
            given.set_item(name, value)?;
        }
        for name in &NAMES[..REQUIRED] {
            if !given.contains(name)? {
                return Err(PyTypeError::new_err(format!("setup() missing required argument '{name}'")));
            }
        }
    }
    let arguments = SetupArguments::from_dict(&given, dictionary.is_some());
    match arguments {
        Err(error) if dictionary.is_some() => Ok(Err(error.value(py).to_string())),
        arguments => arguments.map(Ok),
    }
}

impl SetupArguments {
    fn from_dict(given: &Bound<'_, PyDict>, is_dictionary: bool) -> PyResult<SetupArguments> {
        let text = |name: &str, default: &str| -> PyResult<String> {
            given.get_item(name)?.map_or(Ok(default.to_owned()), |value| value.extract())
        };
        let switch = |name: &str| -> PyResult<bool> {
            let Some(value) = given.get_item(name)? else { return Ok(false) };
            let as_text = |value: &Bound<'_, PyAny>| value.extract::<String>().ok();
            match as_text(&value).filter(|_| is_dictionary) {
                Some(text) => Ok(matches!(&*text.to_ascii_lowercase(), "1" | "true" | "yes" | "on")),
                None => value.extract(),
            }
        };
        let size = |name: &str| -> PyResult<u64> {
            let Some(value) = given.get_item(name)? else { return Ok(DICTIONARY_SIZE) };
            match value.extract::<String>().ok().filter(|_| is_dictionary) {
                Some(text) => text
                    .parse::<ByteSize>()
                    .map(|size| size.0)
                    .map_err(|error| PyValueError::new_err(format!("{name}: {error}"))),
                None => value.extract(),
            }
        };
        let port = || -> PyResult<u16> {
            let Some(value) = given.get_item("client_http_port")? else { return Ok(HTTP_PORT) };
            match value.extract::<String>().ok().filter(|_| is_dictionary) {
                Some(text) => text.parse().map_err(|_| PyValueError::new_err(format!("client_http_port: '{text}'"))),
                None => value.extract(),
            }
        };
        let is_http_on = switch("enable_client_http_server")?;
        Ok(SetupArguments {
            local_hostname: text("local_hostname", "")?,
            metadata_server: text("metadata_server", "")?,
            segment_bytes: size("global_segment_size")?,
            buffer_bytes: size("local_buffer_size")?,
            protocol: text("protocol", "tcp")?,
            devices: text("rdma_devices", "")?,
            master: text("master_server_addr", "127.0.0.1:50051")?,
            has_engine: given.get_item("engine")?.is_some_and(|engine| !engine.is_none()),
            has_ssd_offload: switch("enable_ssd_offload")? | !text("ssd_offload_path", "")?.is_empty(),
            tenant: text("tenant_id", "default")?,
            http_port: Some(port()?).filter(|_| is_http_on),
        })
    }
}
