//! The services: ready lines, ports, signals.

use nix::sys::signal::Signal;

use super::service::{Service, get};
use super::{command, mcctl};

fn metadata() -> (Service, u16) {
    let mut service = Service::start(command(&["serve", "metadata", "--host", "127.0.0.1", "--port=0"]));
    let port = service.port_after("http://127.0.0.1:");
    (service, port)
}

#[test]
fn the_metadata_service_says_where_it_listens_and_answers_there() {
    let (_service, port) = metadata();
    assert_eq!(get(port, "/health"), (200, "OK".to_owned()));
    assert_eq!(get(port, "/metadata?key=a"), (404, "metadata not found".to_owned()));
}

#[test]
fn sigterm_and_sigint_end_a_service_well() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (mut service, _) = metadata();
        assert_eq!(service.stop(signal), 0, "{signal}");
        assert!(service.all_lines().iter().any(|line| line.contains(signal.as_str())), "it names the signal");
    }
}

#[test]
fn a_port_in_use_is_4_and_names_the_process_that_holds_it() {
    let (first, port) = metadata();
    let run = mcctl(&["serve", "metadata", "--host", "127.0.0.1", "--port", &port.to_string()]);
    let said = run.fails(4);
    let expected = format!("error: port {port} for the metadata service is in use by pid {} (", first.pid());
    assert!(said.starts_with(&expected) && said.contains("mcctl serve metadata"), "{said}");
    assert!(
        said.contains(&format!(
            "; tried: listen on 127.0.0.1:{port} for the metadata service: --port {port} (command line);"
        )),
        "{said}"
    );
}

#[test]
fn an_address_of_another_host_is_2() {
    let run = mcctl(&["serve", "metadata", "--host", "192.0.2.1", "--port", "0"]);
    assert!(run.fails(2).starts_with("error: 192.0.2.1 is not an address of this host; tried:"), "{run:?}");
}
