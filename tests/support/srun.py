"""A substitute of SLURM's srun: starts the tasks of a job on hosts, with the variables that srun sets."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from tests.support.hosts import Host


def main(arguments: list[str]) -> int:
    names = Path(os.environ["HOSTS"])
    namespaces, tasks = os.environ["NAMESPACES"].split(), int(os.environ["SLURM_NTASKS_PER_NODE"])
    started = []
    for task in range(len(namespaces) * tasks):
        node, local = divmod(task, tasks)
        variables = {"NTASKS": len(namespaces) * tasks, "NPROCS": len(namespaces) * tasks, "STEP_ID": 0}
        variables |= {"PROCID": task, "NODEID": node, "LOCALID": local, "TASK_PID": 0}
        host = Host(f"host{node}", namespaces[node], names)
        environment = {f"SLURM_{name}": str(value) for name, value in variables.items()}
        started.append(host.start(shlex.join(arguments), Path.cwd(), Path(f"task{task}"), **environment))
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
