"""Many models, many kinds of request, all devices: serving by categories (EPARA).

`scheduling/` decides and is pure; the runtime on real agents and the simulator drive the same code.
How a runtime drives it, on every device that serves:

    node = Node(me, services, RingView(ring, transfer_s), Random(seed))
    ring = Ring(me, roster, interval_s)

1. Where the placement is made, `allocate_all(services, servers)` gives the operators' settings,
   `place_best(servers, allocations, demand)` the replicas. Every server gets its own pools:
   `node.handle(Placed(pools_by_server(placement, allocations).get(me, ())), now_s)`.
2. Whatever comes in becomes an event (`scheduling/events.py`) of `Node.handle(event, now_s)`:
   `Arrived` (a request from a client or another server), `Done` or `Failed` (a batch), `Settled`
   (what was handed on), `ServerGone`, `StreamEnded`, `Placed`, `Tick`.
3. It answers with actions: `Start` (compute these together; then say `Done`), `Send` (hand on to a
   server), `Refused` (say so at once), `Open` (a stream is admitted), `WakeAt` (send `Tick` then).
4. Every `interval_s`: `ring.handle(Tick(node.state(now_s)), now_s)` gives `Tell`s to send;
   what comes becomes `ring.handle(Heard(sender, message), now_s)`.

Times are seconds of one monotonic clock per device. A request's deadline travels as the seconds
that are left, since clocks differ. `Node` never waits, and draws only from its `Random`.
"""
