#include "textflag.h"

// LOOK has the lowest bit of out say whether the four octets at addr may be in a needle. A
// shift goes by the lowest five bits of its count.
#define LOOK(addr, out) \
	MOVL   addr, CX \
	IMUL3L $-1640531527, CX, CX \
	SHRXL  R10, CX, out \
	MOVL   (DI)(out*4), out \
	SHRXL  CX, out, out

// func passBMI2(text []byte, words []uint32, shift uint, p, stride, last int) int
TEXT ·passBMI2(SB), NOSPLIT, $0-88
	MOVQ text_base+0(FP), SI
	MOVQ words_base+24(FP), DI
	MOVQ shift+48(FP), R10
	MOVQ p+56(FP), AX
	MOVQ stride+64(FP), R8
	MOVQ last+72(FP), R9
	LEAQ (R8)(R8*2), R12
	SUBQ R12, R9          // the last place at which there are four

next:
	CMPQ AX, R9
	JGT  done
	LEAQ (SI)(AX*1), R13
	LOOK((R13), BX)
	LOOK((R13)(R8*1), DX)
	ORL  DX, BX
	LOOK((R13)(R8*2), DX)
	ORL  DX, BX
	LOOK((R13)(R12*1), DX)
	ORL  DX, BX
	TESTL $1, BX
	JNE  done
	LEAQ (AX)(R8*4), AX
	JMP  next

done:
	MOVQ AX, ret+80(FP)
	RET
