"""Every figure in the README can be made again from here: one module per bench, run by `potluck
bench NAME`.

A bench module has `SETTINGS` (its defaults, numbers) and `run(settings) -> Result`.
"""

BENCHES = {
    "stream": "tensors between two agents against raw CURVE and plain ZeroMQ",
    "interpreter": "a segment's training step and forward pass against eager torch",
    "processors": "a worker of each backend against torch itself, and how threads scale",
    "agent": "how light the agent and the command are",
    "planners": "every planner on the settings and models of the papers, judged on shared links",
    "regions": "cloud, edge and end devices over slow links: DeepCEE's settings and baselines",
    "slow_links": "two regions over a slow link: synchronous training against local steps",
    "papers": "the papers' figures, and what our simulator gives for the same settings",
    "formats": "other planners' formats: what a round trip loses, their plans judged",
    "optimality": "planners against every plan there is, on small random homes",
    "tomography": "which links share, inferred from noisy rates on random homes, and what that "
    "costs plans",
    "planning_time": "seconds to a first plan, a near-best one and the end",
    "simulator": "simulated actions per second",
    "pipeline": "a pipeline of agents against torch.distributed.pipelining, and one agent "
    "against none",
    "zero_bubble": "schedules whose backwards come in two parts: bubbles against the least there "
    "are, steps against torch.distributed.pipelining",
    "tensor_parallel": "blocks divided by tensor over agents against torch's DTensor, and what a "
    "token takes by link",
    "network_schedule": "transfers in turns against transfers that share the air, predicted and "
    "measured in a lab",
    "recovery": "a device is killed while a home trains: seconds to the next step, against "
    "gathering and planning anew, and a restart from a file",
    "takeover": "the coordinator of a detached training is killed: seconds until the next one has "
    "finished a step",
    "adapt": "a home that changes: our adapter against a plan that stays, planning anew at every "
    "change and an oracle, simulated",
    "stage_sizes": "micro-batches of stages' own sizes where links lose half of their bandwidth, "
    "simulated",
    "generate": "texts of a language model on agents against transformers in this process",
    "gateway": "the HTTP entrance against direct calls, and against a plain Starlette service",
    "switch": "how long a run pauses when its plan changes, against stop-reload-start",
    "cockpit": "what watching a run costs: the training, a browser, bytes, and memory over an hour",
    "digits": "a training step on 1 to 4 local agents against one process, and against its "
    "prediction",
    "split": "one request shared inside its operators against one side alone, layer cuts and "
    "differential evolution",
    "serve": "serving by categories against EPARA and its baselines: simulated, and in a lab "
    "against the prediction",
    "serve_overload": "a service on agents that is asked for more than its devices can do",
    "serve_scale": "serving from 10 to 10,000 simulated servers: handling, placement, state "
    "exchange, events per second",
    "coverage": "architectures of transformers, made small by rule: exported, answered and "
    "trained over two agents as on one machine",
    "fidelity": "predictions against measurements: homes, models, plans, schedules, training and "
    "inference",
}
