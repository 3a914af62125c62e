package launcher_test

const childArg = "launcher-child"

func childMain() {}
