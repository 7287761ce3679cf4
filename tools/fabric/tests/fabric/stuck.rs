//! A transport that never lets time go on.

use spindrift::time::Time;
use spindrift_fabric::{Free, Net, Packet, Transport};

/// Its timer is due again as soon as it has run.
struct Stuck(Time);

impl Transport for Stuck {
    type Event = ();

    fn receive(&mut self, _: Time, _: u8, _: &Packet) {}

    fn transmit(&mut self, _: Time, _: Free, _: &mut Packet) -> bool {
        false
    }

    fn next_timeout(&self) -> Time {
        self.0
    }

    fn on_timeout(&mut self, now: Time) {
        self.0 = now;
    }

    fn on_pause(&mut self, _: Time, _: Time) {}

    fn carrier(&mut self, _: Time, _: u8, _: bool) {}

    fn poll(&mut self) -> Option<()> {
        None
    }
}

#[test]
#[should_panic(expected = "time stands still at 70 ns")]
fn it_is_noticed() {
    let mut net = Net::new(1);
    let host = net.add_host(Stuck(Time(70)));
    net.with_transport(host, |_, _| ());
    net.run(Time(1_000));
}
