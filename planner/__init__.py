"""The planner: pure functions of what it is told. Imports numpy only; knows no clock and no model."""
